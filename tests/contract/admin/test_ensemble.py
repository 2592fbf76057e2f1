"""What each server tells of itself."""

from __future__ import annotations

from support.zoo import Zoo

from django_zklock.inspection import check_quorum, ensemble


def test_a_server_tells_its_role_version_and_figures(zoo: Zoo) -> None:
    check_quorum()
    found = ensemble(max_age=0)
    (server,) = found.servers
    assert (server.address, server.role, server.serves, server.problem) == (zoo.address, "standalone", True, "")
    assert server.version.startswith("3.")
    figures = [server.latency, server.outstanding, server.connections, server.watches, server.znodes, server.sessions]
    assert None not in figures
    assert (server.znodes or 0) > 0
    assert found.findings == ()


def test_callers_share_a_report_for_some_seconds(zoo: Zoo) -> None:
    assert ensemble(max_age=0) is not ensemble(max_age=0)
    assert ensemble() is ensemble()
