"""The health of an ensemble while its servers end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from support import adminsite
from support.chaos.servers import repaired
from support.ensemble import Ensemble
from support.zoo import Zoo, eventually

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.inspection import EnsembleReport, check_quorum, ensemble
from django_zklock.management.exit_codes import ExitCode


@pytest.fixture
def servers(three: Ensemble) -> Iterator[Ensemble]:
    """Three servers, all of them serving before and after."""
    with repaired(three) as servers:
        yield servers


def report() -> EnsembleReport:
    return ensemble(max_age=0)


def test_the_report_names_each_lost_server_and_its_consequence(servers: Ensemble) -> None:
    zoo = Zoo(servers.hosts, servers)
    with zoo.configured(hosts=servers.hosts):
        check_quorum(reply_timeout=20)
        assert sorted(server.role for server in report().servers) == ["follower", "follower", "leader"]
        assert eventually(lambda: not report().findings)
        follower = next(server for server in servers.servers if server.mode() == "follower")
        follower.kill()
        (finding,) = report().findings
        assert (finding.result, "one more server fails" in finding.text) == ("warning", True)
        check_quorum(reply_timeout=20, max_age=0)
        servers.leader.kill()
        eventually(lambda: any("No majority" in finding.text for finding in report().findings), 30)
        with pytest.raises(ZooKeeperUnavailable):
            check_quorum(max_age=0)
    zoo.close()


@pytest.mark.django_db
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_lost_quorum_is_the_first_incident(servers: Ensemble, arguments: tuple[str, ...]) -> None:
    """The landing page, and the first lines of the doctor, say that two of three servers are down, and what to do."""
    zoo = Zoo(servers.hosts, servers)
    operator = adminsite.user_with("view_lock")
    with zoo.configured(hosts=servers.hosts), override_settings(**adminsite.SETTINGS):
        check_quorum(reply_timeout=20)
        for server in (servers.followers[0], servers.leader):
            server.kill()
        assert eventually(lambda: any("No majority: 1 of 3" in finding.text for finding in report().findings), 30)
        (card,) = operator.get("/admin/zklock/lock/").context["cards"]
        out = StringIO()
        with pytest.raises(CommandError) as ended:
            call_command("zklock", "doctor", "--incident", *arguments, stdout=out)
        lines = "\n".join(out.getvalue().splitlines()[:25])
    zoo.close()
    assert ended.value.returncode == ExitCode.UNAVAILABLE
    for text in ("ZooKeeper has no quorum", "1 of 3 servers runs, 2 are needed", "Start the servers that are down"):
        assert text in f"{card['title']} {card['explanation']} {card['remedy']}"
        assert text in lines
    if arguments:
        assert json.loads(out.getvalue())["healthy"] is False
