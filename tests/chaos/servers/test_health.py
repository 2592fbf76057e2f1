"""The health of an ensemble while its servers end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.chaos.servers import repaired
from support.ensemble import Ensemble
from support.zoo import Zoo, eventually

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.inspection import EnsembleReport, check_quorum, ensemble


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
