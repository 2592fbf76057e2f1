"""Servers of several ensembles in one URL are an error everywhere; a healthy ensemble is never called so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from support.adminsite import user_with
from support.ensemble import Ensemble, free_ports
from support.zoo import Zoo

from django_zklock import inspection
from django_zklock.management.exit_codes import ExitCode

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def alone() -> Iterator[Ensemble]:
    """One server that knows itself only, and says "leader", as `standaloneEnabled=false` makes it do."""
    peer, election = free_ports(2)
    properties = {"standaloneEnabled": "false", "server.1": f"127.0.0.1:{peer}:{election}"}
    with Ensemble(nodes=1, properties={**properties, "reconfigEnabled": "true"}) as ensemble:
        yield ensemble


@pytest.fixture
def arena(three: Ensemble) -> Iterator[Zoo]:
    zoo = Zoo(three.hosts, three)
    yield zoo
    zoo.close()


def test_two_ensembles_are_named_by_all_that_look(arena: Zoo, three: Ensemble, alone: Ensemble) -> None:
    out = StringIO()
    with arena.configured(hosts=f"{three.hosts},{alone.hosts}"):
        inspection.check_quorum(reply_timeout=20)
        operator = user_with("view_lock")
        (card,) = operator.get("/admin/zklock/lock/").context["cards"]
        page = operator.get("/admin/zklock/lock/health/").content.decode()
        with pytest.raises(CommandError) as failed:
            call_command("zklock", "doctor", stdout=StringIO())
        with pytest.raises(CommandError) as ended:
            call_command("zklock", "doctor", "--incident", "--json", stdout=out)
    assert card["cause"] == json.loads(out.getvalue())["incidents"][0]["cause"] == "split"
    assert "to two holders" in card["explanation"]
    assert "to two holders" in page
    assert (failed.value.returncode, ended.value.returncode) == (ExitCode.FAILED, ExitCode.SPLIT)


def test_a_verdict_without_a_server_names_the_part(arena: Zoo, three: Ensemble) -> None:
    out = StringIO()
    with arena.configured(hosts=f"{three.hosts},127.0.0.1:{free_ports(1)[0]}"):
        with pytest.raises(CommandError, match="1 incident") as ended:
            call_command("zklock", "doctor", "--incident", stdout=out)
        page = user_with("view_lock").get("/admin/zklock/lock/").content.decode()
    assert ended.value.returncode == ExitCode.DOWN
    assert out.getvalue().startswith("1. ZooKeeper runs on 3 of 4 servers")
    assert "Connection refused. Locks go on. They stop if" in out.getvalue()
    assert "Nothing needs attention." not in page
    assert "3 of 4 servers" in page
