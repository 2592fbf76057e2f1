"""The lock coordinator, locks from other languages, and leases: code and commands work, the tables are right."""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import grpc
import pytest
from google.protobuf import json_format
from support import lease_clients
from support.certificates import authority, certificate
from support.docs import files_of, programs_of, run, text_of
from support.ensemble import free_ports
from support.serving import Serving
from support.zoo import SESSION, TESTS

from django_zklock.contrib.leases.coordinator import key_of
from django_zklock.contrib.leases.refusal import Code
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from zklock_client.v1 import lock_coordinator_pb2_grpc as pb_grpc

GUIDE, LEASES = "how-to/lock-coordinator.md", "reference/leases.md"
LANGUAGES = "how-to/lock-from-other-languages.md"
CLIENT = TESTS.parent / "clients" / "python"


def rows(page, heading):
    """Return the cells of the table below a heading, without its head."""
    section = text_of(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return lines[2:]


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


def lease_settings():
    return run(files_of(GUIDE)["settings.py"])["ZKLOCK"]["LEASES"]


def test_the_request_of_the_guide_is_answered_as_shown(zoo):
    """Grpcurl writes and reads messages as protobuf's own JSON."""
    (wanted,) = re.findall(r"^grpcurl .* -d '(.*?)' ", text_of(GUIDE), re.MULTILINE)
    (shown,) = re.findall(r"^```json\n(.*?)^```$", text_of(GUIDE), re.MULTILINE | re.DOTALL)
    with Serving(zoo) as serving, grpc.insecure_channel(serving.address) as channel:
        request = json_format.Parse(wanted, pb.RecordLockRequest())
        answer = pb_grpc.LockCoordinatorStub(channel).RecordLock(request, timeout=20)
    assert [*json_format.MessageToDict(answer)] == [*json.loads(shown)]


def test_the_command_for_shell_scripts_runs(zoo):
    (command,) = re.findall(r"^python -m (zklock_client run .*)$", text_of(LANGUAGES), re.MULTILINE)
    with Serving(zoo, session_timeout=20) as serving:
        words = command.replace("127.0.0.1:50051", serving.address).replace("./report.sh", "sh -c 'exit 9'")
        done = subprocess.run([sys.executable, "-m", *shlex.split(words)], cwd=CLIENT, check=False, timeout=60)
    assert done.returncode == 9


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_command_with_tls_serves_the_clients_of_the_settings(zoo, tmp_path):
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
        stub = pb_grpc.LockCoordinatorStub(channel)
        wanted = pb.RecordLockRequest(resource_path="a", client_id="x", kind=pb.KIND_READ)
        assert stub.RecordLock(wanted, timeout=20).acquired
        with pytest.raises(grpc.RpcError, match="may not take the kind 'write'"):
            stub.RecordLock(pb.RecordLockRequest(resource_path="b", client_id="x", kind=pb.KIND_WRITE), timeout=20)


def test_the_guide_names_each_refusal():
    shown = [(quoted(slug)[0], quoted(status)[0]) for slug, status, _ in rows(GUIDE, "Refusals")]
    assert shown == [(code.slug, "acquired" if code is Code.BUSY else code.grpc) for code in Code]


def test_the_names_in_the_table_have_these_keys():
    for resources, key in rows(LEASES, "Names"):
        assert {key_of(resource) for resource in quoted(resources)} == {quoted(key)[0]}


def test_the_examples_in_python_run(zoo):
    files = files_of(LANGUAGES)
    with Serving(zoo, session_timeout=20) as coordinator:
        code = files["report.py"].replace("127.0.0.1:50051", "127.0.0.1:1")
        report = run(code.replace("127.0.0.1:50052", coordinator.address))
        written = []
        with report["client"]:
            report["write_report"]("may", ["one", "two"], lambda page, token: written.append((page, token)))
        assert [page for page, _ in written] == ["one", "two"]
        assert written[0][1] == written[1][1] > 0

        areport = run(files["areport.py"])
        tokens = []

        async def write(token):
            tokens.append(token)

        asyncio.run(areport["write_report"](coordinator.address, "june", write))
        assert tokens[0] > written[0][1]


@pytest.mark.parametrize(
    ("language", "file"),
    [
        ("node", "report.js"),
        pytest.param("go", "report.go", marks=pytest.mark.chaos),
        pytest.param("java", "Report.java", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(600)
def test_the_programs_in_other_languages_run(zoo, language, file, tmp_path):
    with Serving(zoo, session_timeout=20) as coordinator:
        code = programs_of(LANGUAGES)[file]
        code = code.replace("127.0.0.1:50051", "127.0.0.1:1").replace("127.0.0.1:50052", coordinator.address)
        (tmp_path / file).write_text(code)
        words, env = lease_clients.program(language, tmp_path / file)
        done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    pages, tokens = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert pages == ("one", "two")
    assert int(tokens[0]) == int(tokens[1]) > 0


def test_the_leases_of_the_unit_survive_a_restart(zoo, tmp_path):
    unit = text_of(GUIDE).partition("# coordinator.service\n")[2].partition("```")[0]
    options = re.findall(r"^ExecStart=\S+ manage.py zklock serve (.*)$", unit, re.MULTILINE)[0]
    directory = re.findall(r"^StateDirectory=(.*)$", unit, re.MULTILINE)[0]
    assert f"/var/lib/{directory}/" in options
    options = options.replace(f"/var/lib/{directory}", str(tmp_path))
    with (
        Serving(zoo, *shlex.split(options), session_timeout=SESSION) as serving,
        grpc.insecure_channel(serving.address) as channel,
    ):
        stub = pb_grpc.LockCoordinatorStub(channel)
        wanted = pb.RecordLockRequest(resource_path="a", client_id="x", request_id="r1", session_timeout_ms=60_000)
        lease = stub.RecordLock(wanted, timeout=20)
        assert serving.drain() == 0
        serving.start()
        assert stub.RecordLock(wanted, timeout=20, wait_for_ready=True).lease_id == lease.lease_id
        assert stub.ReleaseLock(pb.ReleaseLockRequest(lease_id=lease.lease_id), timeout=20).released
