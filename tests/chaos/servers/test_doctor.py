"""`doctor` judges the members of the ensemble, whichever of them `URL` names, and compares what they grant."""

import json

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl_credential
from support.ensemble import Ensemble
from support.locking import ending
from support.zoo import eventually

from django_zklock import inspection
from django_zklock.report.servers import summary

pytestmark = pytest.mark.timeout(200)

SMALL = ["-Xmx96m"]
SUPER = make_digest_acl_credential("super", "secret")
STRIPPED = [*SMALL, f"-Dzookeeper.DigestAuthenticationProvider.superDigest={SUPER}"]
FIVE = {"nodes": 5, "java_options": SMALL}
DYNAMIC = {"tells_client_ports": True, "java_options": STRIPPED, "properties": {"reconfigEnabled": "true"}}


@pytest.fixture
def ensemble(request):
    with Ensemble(**request.param) as ensemble:
        yield ensemble


def hosts(ensemble, numbers):
    return ",".join(ensemble.servers[number - 1].address for number in numbers)


def seen(arena, numbers):
    with arena.configured(hosts(arena.ensemble, numbers)):
        inspection.check_quorum(reply_timeout=30)
        return inspection.ensemble(reply_timeout=10, max_age=0)


def texts(report):
    return " ".join(finding.text for finding in report.findings)


def checks(arena, numbers, name):
    with arena.configured(hosts(arena.ensemble, numbers)):
        _, printed, _ = ending("doctor", "--json", "--reply-timeout=60s")
    return [(check["result"], check["text"]) for check in json.loads(printed)["checks"] if check["name"] == name]


def stop(ensemble, *numbers):
    for number in numbers:
        ensemble.servers[number - 1].kill()
    eventually(lambda: any(server.mode() == "leader" for server in ensemble.servers if server.running), 30)
    for server in ensemble.servers:
        if server.running:
            server.wait_ready(30)


@pytest.mark.parametrize("ensemble", [{"nodes": 5, **DYNAMIC}], indirect=True)
def test_members_that_url_does_not_name_count(arena, ensemble):
    assert summary(seen(arena, [1, 2, 3])) == "5 of 5 servers run. Locks go on if 2 more fail."
    stop(ensemble, 4, 5)
    report = seen(arena, [1, 2, 3])
    assert summary(report) == "3 of 5 servers run. One more failure stops all locks."
    assert texts(report).count("They stop if one more server fails.") == 2
    ensemble.servers[3].start()
    ensemble.servers[3].wait_ready(60)
    stop(ensemble, 3)
    report = seen(arena, [1, 2])
    assert summary(report) == "3 of 5 servers run. One more failure stops all locks."


@pytest.mark.parametrize("ensemble", [FIVE], indirect=True)
def test_members_without_a_known_address_are_not_looked_at(arena, ensemble):
    """They are neither up nor down, and `doctor` does not say how many may fail."""
    for down in ([], [3]):
        stop(ensemble, *down)
        report = seen(arena, [1, 2, 3])
        assert report.spare is None
        assert summary(report).endswith("so it is not known how many may fail.")
        assert texts(report).count("is a member of the ensemble, and was not looked at; name it in URL.") == 2
        assert "They stop if" not in texts(report)
    assert summary(seen(arena, [1, 2, 3, 4, 5])) == "4 of 5 servers run. Locks go on if 1 more fails."


@pytest.mark.parametrize("ensemble", [{"nodes": 4, **DYNAMIC}], indirect=True)
def test_a_server_that_was_removed_is_no_member(arena, ensemble):
    admin = KazooClient(hosts=ensemble.leader.address, auth_data=[("digest", "super:secret")])
    admin.start(30)
    removed = ensemble.followers[0]
    admin.reconfig(joining=None, leaving=str(removed.number), new_members=None)
    report = seen(arena, [removed.number])
    assert f"{removed.address} is in URL, and is no member of the ensemble." in texts(report)
    assert summary(report) == "3 of 3 servers run. Locks go on if 1 more fails."
    with arena.configured(removed.address):
        assert ending("doctor", "--strict", "--reply-timeout=60s")[0] != 0
    others = [server.number for server in ensemble.servers if server is not removed]
    assert texts(seen(arena, others)) == ""

    admin.set_acls("/zookeeper/config", [make_acl("ip", "10.9.9.9", all=True)])
    report = seen(arena, others)
    assert "The members of the ensemble are not known." in texts(report)
    assert "NoAuthError" in texts(report)
    assert summary(report) == "3 of 3 servers run. It is not known how many may fail."
    with arena.configured(hosts(ensemble, others)):
        assert "Nothing needs attention" not in ending("doctor", "--incident", "--reply-timeout=60s")[1]
    admin.stop()
    admin.close()


@pytest.mark.parametrize("ensemble", [{"nodes": 4, "observers": 1}], indirect=True)
def test_an_observer_that_is_down_is_no_voter(arena, ensemble):
    assert summary(seen(arena, [1, 2, 3, 4])) == "3 of 3 servers run. Locks go on if 1 more fails."
    ensemble.servers[3].kill()
    assert summary(seen(arena, [1, 2, 3, 4])) == "3 of 3 servers run. Locks go on if 1 more fails."


GROUPS = {"group.1": "1:2", "group.2": "3", **{f"weight.{number}": "1" for number in (1, 2, 3)}}


@pytest.mark.parametrize("ensemble", [{"nodes": 3, "properties": GROUPS}], indirect=True)
def test_groups_and_weights_are_not_judged(arena, ensemble):
    report = seen(arena, [1, 2, 3])
    assert texts(report) == "The ensemble has groups or weights, so it was not judged how many servers may fail."
    assert summary(report) == "3 of 3 servers run. It is not known how many may fail."


@pytest.mark.parametrize(
    ("ensemble", "words"),
    [
        ({"nodes": 3, "per_server": {2: {"maxSessionTimeout": "4000"}}}, "grants 1 to 4 s"),
        ({"nodes": 3, "per_server": {2: {"minSessionTimeout": "2000"}}}, "grants 2 to 10 s"),
        ({"nodes": 3, "per_server": {2: {"tickTime": "1000"}}}, "grants 2 to 20 s with ticks of 1 s"),
    ],
    indirect=["ensemble"],
)
def test_different_bounds_of_the_session_timeout_are_named(arena, ensemble, words):
    ((result, text),) = checks(arena, [1, 2, 3], "session bounds")
    assert result == "warning"
    assert f"{ensemble.servers[1].address} {words}" in text
    assert f"{ensemble.servers[0].address} grants 1 to 10 s with ticks of 0.5 s" in text
    assert "finish the rolling restart" in text


@pytest.mark.parametrize("ensemble", [{"nodes": 3, "properties": {"4lw.commands.whitelist": "srvr"}}], indirect=True)
def test_equal_bounds_are_told_and_a_server_that_was_not_asked_is_named(arena, ensemble):
    """No command is needed that servers refuse by default."""
    assert checks(arena, [1, 2, 3], "session bounds") == [("ok", "3 servers, 1 to 10 s.")]
    stop(ensemble, 3)
    down = ensemble.servers[2].address
    assert checks(arena, [1, 2, 3], "session bounds") == [("info", f"2 servers, 1 to 10 s. Not asked: {down}.")]
