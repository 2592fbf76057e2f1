"""Fields of a later release survive in a znode when a process of this release writes it again."""

import json

from support.reserving import path_of, queued
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.contrib.celery.unique import reservations
from django_zklock.operations import clear_limit, request_release, set_limit

WHY = {"reason": "why", "by": "anna"}
NEW = {"priority": 7, "ünïcode": ["é", {"nested": None}]}


def add(zoo, path):
    """Add the fields, as a process of a later release may."""
    data, stat = zoo.client.get(path)
    zoo.client.set(path, json.dumps({**json.loads(data), **NEW}).encode(), stat.version)


def read(zoo, path):
    """Return the fields of a znode; those of the later release must be there."""
    fields = json.loads(zoo.client.get(path)[0])
    assert NEW.items() <= fields.items()
    return fields


def test_a_release_request_keeps_unknown_fields(zoo):
    with zk_lock("k") as hold:
        add(zoo, hold.path)
        request_release("k", **WHY)
        request_release("k", reason="again", by="ben")
        assert read(zoo, hold.path)["release_request"]["by"] == "ben"


def test_a_holder_keeps_unknown_fields_when_it_writes_its_grant(zoo):
    with zk_lock("k") as hold:
        add(zoo, hold.path)
        eventually(lambda: "waited" in read(zoo, hold.path))


def test_a_change_of_a_limit_keeps_unknown_fields(zoo):
    directory = f"{zoo.base}/k"
    set_limit("k", 5, **WHY)
    add(zoo, directory)
    set_limit("k", 3, **WHY)
    assert read(zoo, directory)["before"] == 5
    assert read(zoo, f"{directory}/!limit:3:")["before"] == 5
    with zk_lock("k", limit=1):
        clear_limit("k", **WHY)
        assert read(zoo, directory)["before"] == 5
        assert read(zoo, f"{directory}/!limit:0:")["before"] == 5


def test_a_reservation_keeps_unknown_fields_when_its_task_is_sent_again(zoo):
    queued("a/b", "one")
    (name,) = zoo.names(path_of(zoo, "a/b"))
    add(zoo, f"{path_of(zoo, 'a/b')}/{name}")
    queued("a/b", "one", again=True, seconds=600)
    assert float(read(zoo, f"{path_of(zoo, 'a/b')}/{name}")["about"]["seconds"]) > 590  # by the clock of the server
    assert reservations.end("a/b", "one") is None
