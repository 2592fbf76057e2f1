"""The health of ZooKeeper: for probes, and on its page in the admin; and servers of several ensembles in one URL."""

import asyncio
import uuid

import pytest
from django.test import Client
from health_check.exceptions import ServiceUnavailable, ServiceWarning
from support.adminsite import user_with
from support.faults import within
from support.proxy import Proxy
from support.texts import assert_shows
from support.zoo import eventually

from django_zklock import inspection
from django_zklock.contrib.health_check import Incidents, ZooKeeper
from django_zklock.core.queue.nodes import prefix
from django_zklock.inspection.ensemble import EnsembleReport, ServerReport
from django_zklock.report import background, verdict
from django_zklock.report.servers import summary

pytestmark = pytest.mark.django_db

PAGE = "/admin/zklock/lock/"


def test_a_probe_is_answered_without_a_login(zoo):
    """It says no more than that: anybody may ask."""
    healthy = Client().get("/health.json")
    assert (healthy.status_code, healthy.json()) == (200, {"healthy": True})
    with zoo.configured(hosts="127.0.0.1:1"), within(3):
        ill = Client().get("/health.json")
    assert (ill.status_code, ill.json()) == (503, {"healthy": False})
    assert ill.headers["Retry-After"] == "1"


@pytest.mark.timed
def test_django_health_check_has_a_check(zoo, caplog):
    assert asyncio.run(ZooKeeper().get_result()).error is None
    with zoo.configured(hosts="127.0.0.1:1"):
        error = asyncio.run(ZooKeeper().get_result()).error
    assert isinstance(error, ServiceUnavailable)
    assert str(error) == "Unavailable: ZooKeeper does not answer", "anybody may read it, so it has no address"
    assert "connection refused" in caplog.text


def test_its_check_of_incidents_is_not_green_over_what_was_not_looked_at(zoo):
    def said():
        error = asyncio.run(Incidents().get_result()).error
        assert error is None or isinstance(error, ServiceWarning)
        return str(error or "")

    def look():
        background.last.store(verdict.now(10).verdict)
        return said()

    assert "not looked at yet" in said(), "no look was made"
    path = zoo.client.create(f"{zoo.base}/k/{prefix(str(uuid.uuid4()))}", b"", sequence=True, makepath=True)
    eventually(lambda: "orphan" in look())
    zoo.client.delete(path)
    eventually(lambda: look() == "")


def test_the_page_shows_servers_and_the_connection(zoo):
    page = user_with("view_lock").get(PAGE).content.decode()
    assert zoo.address in page
    assert_shows(page, "standalone", "The only server runs. If it stops, all locks stop.")


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        (["serves", "serves", "serves"], "3 of 3 servers run. Locks go on if 1 more fails."),
        (["serves", "serves", "down"], "2 of 3 servers run. One more failure stops all locks."),
        (["serves", "down", "down"], "1 of 3 servers are in a quorum. That is no majority, so no lock is granted."),
        (["serves", "serves", "unknown"], "1 of 3 servers cannot be asked, so it is not known how many may fail."),
    ],
)
def test_the_page_says_how_many_servers_may_fail(states, sentence):
    reports = []
    for number, state in enumerate(states):
        role = "follower" if state == "serves" else ""
        reports.append(ServerReport(address=f"zk{number}", state=state, role=role))
    assert summary(EnsembleReport(tuple(reports))) == sentence


def test_a_process_that_only_reads_believes_its_own_answers(zoo):
    """Between it and ZooKeeper, something passes sessions and no four-letter words."""
    with Proxy(zoo.address) as filtering, zoo.configured(hosts=filtering.address):
        inspection.snapshot(reply_timeout=10)
        page = user_with("view_lock").get(PAGE).content.decode()
    assert_shows(page, f"{filtering.address}", "cannot be asked", hides=["No majority"])
