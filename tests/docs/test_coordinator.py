"""The guide to the lock coordinator and the page about leases: the commands work, and the tables are right."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.certificates import authority, certificate
from support.docs import files_of, run, text_of
from support.ensemble import free_ports
from support.serving import Serving
from support.zoo import Zoo

from django_zklock.contrib import leases
from django_zklock.contrib.leases.coordinator import key_of
from django_zklock.contrib.leases.refusal import Code
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from zklock_client.v1 import lock_coordinator_pb2_grpc as pb_grpc

GUIDE, LEASES = "how-to/lock-coordinator.md", "reference/leases.md"


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its head."""
    section = text_of(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return lines[2:]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def lease_settings() -> Any:
    return run(files_of(GUIDE)["settings.py"])["ZKLOCK"]["LEASES"]


@pytest.mark.zookeeper
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_request_of_the_guide_is_answered_as_shown(zoo: Zoo) -> None:
    (command,) = re.findall(r"^```sh\n(.*?)^```$", text_of(GUIDE), re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```json\n(.*?)^```$", text_of(GUIDE), re.MULTILINE | re.DOTALL)
    with Serving(zoo, http=True) as serving:
        words = shlex.split(command.replace(":8080", f":{serving.http_port}"))
        done = subprocess.run([*words, "--silent"], capture_output=True, text=True, timeout=30, check=True)
    assert [*json.loads(done.stdout)] == [*json.loads(shown)], done.stdout


@pytest.mark.zookeeper
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_command_with_tls_serves_the_clients_of_the_settings(zoo: Zoo, tmp_path: Path) -> None:
    server_ca, _ = authority(tmp_path, "servers"), authority(tmp_path, "clients")
    certificate(tmp_path, "server", "servers")
    credentials = grpc.ssl_channel_credentials(server_ca, *certificate(tmp_path, "reports.internal", "clients"))
    (command,) = re.findall(r"zklock serve (--grpc .*?)^```", text_of(GUIDE), re.MULTILINE | re.DOTALL)
    port = free_ports(1)[0]
    command = command.replace("\\\n", "").replace(":50051", f":{port}")
    options = re.sub(r"\S+\.(?:pem|key)", lambda file: str(tmp_path / file[0]), command)
    with (
        Serving(zoo, *shlex.split(options), leases=lease_settings()),
        grpc.secure_channel(f"localhost:{port}", credentials) as channel,
    ):
        stub: Any = pb_grpc.LockCoordinatorStub(channel)  # type: ignore[no-untyped-call]
        wanted = pb.RecordLockRequest(resource_path="a", client_id="x", kind=pb.KIND_READ)
        assert stub.RecordLock(wanted, timeout=20).acquired
        with pytest.raises(grpc.RpcError, match="may not take the kind 'write'"):
            stub.RecordLock(pb.RecordLockRequest(resource_path="b", client_id="x", kind=pb.KIND_WRITE), timeout=20)


def test_the_guide_names_each_refusal() -> None:
    shown = [(quoted(slug)[0], quoted(status)[0], int(http)) for slug, status, http, _ in rows(GUIDE, "Refusals")]
    codes = [(code.slug, "acquired" if code is Code.BUSY else code.grpc, code.http) for code in Code]
    assert shown == codes


def test_the_names_in_the_table_have_these_keys() -> None:
    for resources, key in rows(LEASES, "Names"):
        assert {key_of(resource) for resource in quoted(resources)} == {quoted(key)[0]}


def test_the_tables_name_each_field() -> None:
    """Those of gRPC and of HTTP, without the state of a lease and what it says, which a text explains."""
    schemas = json.loads(Path(leases.__file__).with_name("openapi.json").read_text())["components"]["schemas"]
    request = {quoted(name)[0] for name, _ in rows(LEASES, "Fields of a request")}
    answer = {quoted(name)[0] for name, _ in rows(LEASES, "Fields of an answer")}
    assert request == {*pb.RecordLockRequest.DESCRIPTOR.fields_by_name, *schemas["LeaseRequest"]["properties"]}
    fields = {*pb.RecordLockResponse.DESCRIPTOR.fields_by_name, *pb.LeaseState.DESCRIPTOR.fields_by_name}
    assert answer == {*fields, *schemas["Lease"]["properties"]} - {"state", "detail", "signed_token", *request}
