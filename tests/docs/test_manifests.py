"""The files that run ZooKeeper: Kubernetes accepts the manifest, and all of them have the settings of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.docs import DOCS

codecs = pytest.importorskip("lightkube.codecs", reason="the types of Kubernetes' API, which are in the group `test`")
import yaml  # noqa: E402 - comes with lightkube

ROOT = DOCS.parent
PAGE = (DOCS / "how-to" / "run-zookeeper.md").read_text()
KUBERNETES = ROOT / "examples" / "kubernetes"
MANIFEST = list(yaml.safe_load_all((KUBERNETES / "zookeeper.yaml").read_text()))
PROJECT = list(yaml.safe_load_all((KUBERNETES / "project.yaml").read_text()))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())

IMAGE = {
    "ZOO_TICK_TIME": "tickTime",
    "ZOO_INIT_LIMIT": "initLimit",
    "ZOO_SYNC_LIMIT": "syncLimit",
    "ZOO_MAX_CLIENT_CNXNS": "maxClientCnxns",
    "ZOO_AUTOPURGE_SNAPRETAINCOUNT": "autopurge.snapRetainCount",
    "ZOO_AUTOPURGE_PURGEINTERVAL": "autopurge.purgeInterval",
    "ZOO_4LW_COMMANDS_WHITELIST": "4lw.commands.whitelist",
    "ZOO_ADMINSERVER_ENABLED": "admin.enableServer",
}
"""
The settings of `zoo.cfg` that the official image writes for its variables. It also writes each word of `ZOO_SERVERS`
and `ZOO_CFG_EXTRA`.

https://github.com/31z4/zookeeper-docker/blob/master/3.9.4/docker-entrypoint.sh
"""


def lost(given: Any, parsed: Any, path: str = "") -> Iterator[str]:
    """Find what Kubernetes would not know: the fields of a document that are not in the parsed one."""
    if isinstance(given, dict):
        for name, value in given.items():
            yield from lost(value, parsed[name], f"{path}.{name}") if name in parsed else [f"{path}.{name}"]
    elif isinstance(given, list):
        for index, (value, other) in enumerate(zip(given, parsed, strict=True)):
            yield from lost(value, other, f"{path}[{index}]")


def settings(lines: list[str]) -> dict[str, str]:
    """Return settings of `zoo.cfg` without the names of the servers, and where the image has its directories."""
    options = dict(line.split("=", 1) for line in lines)
    assert options.pop("dataDir", "/data") == "/data"
    assert options.pop("dataLogDir", "/datalog") == "/datalog"
    return {name: re.sub(r"^[\w.-]+(?=:2888)", "HOST", value) for name, value in options.items()}


def of_variables(variables: dict[str, str]) -> dict[str, str]:
    """Return the settings that the official image makes from these variables."""
    lines = [f"{name}={variables[variable]}" for variable, name in IMAGE.items()]
    return settings([*lines, *variables["ZOO_SERVERS"].split(), *variables["ZOO_CFG_EXTRA"].split()])


def of_page() -> dict[str, str]:
    (block,) = re.findall(r"^```ini\n# zoo\.cfg\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return settings(block.splitlines())


def container() -> dict[str, Any]:
    (only,) = MANIFEST[-1]["spec"]["template"]["spec"]["containers"]
    return dict(only)


@pytest.mark.parametrize(
    "document", [*MANIFEST, *PROJECT], ids=lambda document: f"{document['kind']}-{document['metadata']['name']}"
)
def test_kubernetes_knows_every_field(document: dict[str, Any]) -> None:
    """Its types, made from the API's own schema, accept the manifest: no field is unknown, missing or mistyped."""
    assert list(lost(document, codecs.from_dict(document).to_dict())) == []


def test_the_manifest_has_the_settings_of_the_page() -> None:
    """The variables of the container give the same `zoo.cfg`, with three servers."""
    assert of_variables({variable["name"]: variable["value"] for variable in container()["env"]}) == of_page()
    assert MANIFEST[-1]["spec"]["replicas"] == 3


@pytest.mark.parametrize("service", COMPOSE["services"])
def test_the_compose_file_has_the_settings_of_the_page(service: str) -> None:
    """So has each of its three services."""
    variables = COMPOSE["services"][service]["environment"]
    assert of_variables(variables) == of_page()
    assert variables["ZOO_MY_ID"] == service.removeprefix("zk")


def test_the_project_reaches_the_ports_of_clients() -> None:
    """Its pods have the label that the NetworkPolicy asks for, which opens the ports with and without TLS."""
    (policy,) = (document for document in MANIFEST if document["kind"] == "NetworkPolicy")
    (rule,) = (rule for rule in policy["spec"]["ingress"] if {"port": 2281} in rule["ports"])
    assert rule["ports"] == [{"port": 2181}, {"port": 2281}]
    (label,) = rule["from"][0]["podSelector"]["matchLabels"].items()
    assert all(label in document["spec"]["template"]["metadata"]["labels"].items() for document in PROJECT)


def test_each_time_to_stop_is_longer_than_the_one_before() -> None:
    """SIGKILL comes after gunicorn, or the soft shutdown of Celery, has had its time."""
    web, worker = (document["spec"]["template"]["spec"] for document in PROJECT)
    (container,) = web["containers"]
    (graceful,) = (int(option.partition("=")[2]) for option in container["command"] if "graceful" in option)
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert before + graceful < web["terminationGracePeriodSeconds"]
    page = (DOCS / "how-to" / "deploy.md").read_text()
    (soft,) = re.findall(r"^CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = (\d+)$", page, re.MULTILINE)
    grace = worker["terminationGracePeriodSeconds"]
    assert int(soft) < grace
    assert f"terminationGracePeriodSeconds: {grace}" in page
    assert f"TimeoutStopSec={grace}" in page
    assert {"name": "REMAP_SIGTERM", "value": "SIGQUIT"} in worker["containers"][0]["env"]


def test_the_manifest_and_the_compose_file_agree() -> None:
    """The parts that are not in `zoo.cfg` are the same, too."""
    services = COMPOSE["services"].values()
    assert {service["image"] for service in services} == {container()["image"]}
    heap = {variable["value"] for variable in container()["env"] if variable["name"] == "ZK_SERVER_HEAP"}
    assert {service["environment"]["ZK_SERVER_HEAP"] for service in services} == heap
    assert f"ZK_SERVER_HEAP={heap.pop()}" in PAGE
    for mounted in (
        [volume.partition(":")[2] for service in services for volume in service["volumes"]],
        [volume["mountPath"] for volume in container()["volumeMounts"]],
    ):
        assert set(mounted) == {"/data", "/datalog"}
