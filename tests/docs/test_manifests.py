"""The files that run ZooKeeper: Kubernetes accepts the manifest, and all of them have the settings of the page."""

import re

import pytest
from support.docs import DOCS

codecs = pytest.importorskip("lightkube.codecs", reason="the types of Kubernetes' API, which are in the group `test`")
import yaml  # noqa: E402 - comes with lightkube

ROOT = DOCS.parent
KUBERNETES = ROOT / "examples" / "kubernetes"
MANIFEST = list(yaml.safe_load_all((KUBERNETES / "zookeeper.yaml").read_text()))
PROJECT = list(yaml.safe_load_all((KUBERNETES / "project.yaml").read_text()))
COORDINATOR = list(yaml.safe_load_all((KUBERNETES / "coordinator.yaml").read_text()))


def lost(given, parsed, path=""):
    """Find what Kubernetes would not know: the fields of a document that are not in the parsed one."""
    if isinstance(given, dict):
        for name, value in given.items():
            yield from lost(value, parsed[name], f"{path}.{name}") if name in parsed else [f"{path}.{name}"]
    elif isinstance(given, list):
        for index, (value, other) in enumerate(zip(given, parsed, strict=True)):
            yield from lost(value, other, f"{path}[{index}]")


def settings(lines):
    """Return settings of `zoo.cfg` without the names of the servers, and where the image has its directories."""
    options = dict(line.split("=", 1) for line in lines)
    assert options.pop("dataDir", "/data") == "/data"
    assert options.pop("dataLogDir", "/datalog") == "/datalog"
    return {name: re.sub(r"^[\w.-]+(?=:2888)", "HOST", value) for name, value in options.items()}


@pytest.mark.parametrize(
    "document",
    [*MANIFEST, *PROJECT, *COORDINATOR],
    ids=lambda document: f"{document['kind']}-{document['metadata']['name']}",
)
def test_kubernetes_knows_every_field(document):
    assert list(lost(document, codecs.from_dict(document).to_dict())) == []


def test_the_project_reaches_the_ports_of_clients():
    (policy,) = (document for document in MANIFEST if document["kind"] == "NetworkPolicy")
    (rule,) = (rule for rule in policy["spec"]["ingress"] if {"port": 2281} in rule["ports"])
    assert rule["ports"] == [{"port": 2181}, {"port": 2281}]
    (label,) = rule["from"][0]["podSelector"]["matchLabels"].items()
    assert all(label in document["spec"]["template"]["metadata"]["labels"].items() for document in PROJECT)
    assert label in COORDINATOR[1]["spec"]["template"]["metadata"]["labels"].items()
