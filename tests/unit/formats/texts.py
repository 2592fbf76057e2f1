"""The texts that this release writes for other processes, and how it reads them. Each value here is fixed."""

import datetime
import decimal
import enum
import json
import uuid
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace

from celery import Celery
from celery.app.task import Context
from celery.exceptions import Ignore, Retry
from django.contrib.auth.models import User
from django_zklock.core.queue.acknowledgement import Acknowledgement

from django_zklock.conf import Keys
from django_zklock.contrib.celery import beat, copies, messages
from django_zklock.contrib.celery.schedule import RunRecord
from django_zklock.contrib.celery.schedule import _node_of as name_of_entry
from django_zklock.contrib.celery.unique import lifecycle, reservations
from django_zklock.contrib.fences.rows import MAX_NAME
from django_zklock.contrib.leases import coordinator
from django_zklock.contrib.leases.refusal import Addresses
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.operator_holds import read_hold
from django_zklock.core.queue import acknowledgement, markers, operator_hold, release_request
from django_zklock.core.queue.deadlock import WaitsFor
from django_zklock.core.queue.escaping import key_of, path, shortened
from django_zklock.core.queue.markers import LimitRecord
from django_zklock.core.queue.nodes import Kind, Mark, Payload, parse, prefix
from django_zklock.core.zk.gateway import CLOCK_NODE, Node
from django_zklock.exceptions import UnreadableQueue, ZkLockError
from django_zklock.fencing.signing import TokenHolder, VerifiedToken, seal, unseal
from django_zklock.fencing.stores import DatabaseTokens
from django_zklock.inspection.info import to_json
from django_zklock.locks.multi import joined
from django_zklock.management.zklock import doctor
from django_zklock.names.field_values import text_of
from django_zklock.names.template import Template, escape
from django_zklock.report.history import Broken
from django_zklock.report.holders import Host, Hung

BASE = "/shop/zklock"
KEY = "0123456789abcdef0123456789abcdef"
GUIDS = {
    Mark.OWN: "0c1a3a55-ce0a-8d7b-9a4f-a8e7f2e1d111",
    Mark.REPLACEABLE: "0e573a55-ce0a-8d7b-9a4f-a8e7f2e1d111",
    Mark.OPERATOR: "0be73a55-ce0a-8d7b-9a4f-a8e7f2e1d111",
}
GUID = GUIDS[Mark.OWN]
SINCE = "2026-11-01T12:00:00.000+00:00"
NOON = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.timezone.utc)
TASK = {"task": "shop.tasks.restock", "id": GUID, "retries": "0", "queue": "celery"}
VIEW = Payload(
    guid=GUID,
    host="web-1",
    pid=42,
    thread="MainThread",
    what="GET /buy/<sku>",
    since=SINCE,
    template="inventory/{sku}",
    about={"request": "GET /buy/<sku>"},
    owner=140_000,
    session_timeout=20_000,
)
WORKER = replace(VIEW, what=f"task shop.tasks.restock {GUID}", about=TASK)
ASKED = release_request.release_request(by="anna", reason="deploy 42", at=SINCE)


class Size(str, enum.Enum):
    SMALL = "small"


def names_of_contenders():
    number = "0000000007"
    names = {f"{kind.word}, {mark.name}": prefix(GUIDS[mark], kind) + number for kind in Kind for mark in Mark}
    kinds = (Kind.LOCK, Kind.READ, Kind.WRITE)
    return names | {f"{kind.word} for kazoo": prefix(GUID, kind, "kazoo") + number for kind in kinds}


def read_name(name):
    try:
        child = parse(name)
    except UnreadableQueue:
        return "refused"
    if child is None:
        return {"limit": markers.limit_in(name), "marker": markers.is_marker(name)}
    return {
        "kind": child.kind.word,
        "guid": child.guid,
        "number": child.sequence,
        "ours": child.by_us,
        "curator": child.by_curator,
        "replaceable": child.replaceable,
        "operator": operator_hold.is_operator(name),
    }


def contenders():
    payloads = {
        "view": VIEW,
        "task": replace(WORKER, about={**TASK, "message": GUID, "redelivered": "1", "trace": KEY, "span": KEY[:16]}),
        "semaphore": replace(WORKER, limit=3),
        "leader": replace(VIEW, what="celery beat shop", about={}, lasts="leader", renewed_within=90_000),
        "with max_hold": replace(VIEW, max_hold=60_000),
        "granted after a wait": replace(VIEW, waited=1500),
        "lingers": replace(VIEW, waited=1500, idle="2026-11-01T12:00:30.000+00:00"),
        "waits for another lock": replace(VIEW, waits_for={"key": "stock/7", "guid": GUID, "czxid": "4294967311"}),
        "waits until a time": replace(
            VIEW, waits_for=WaitsFor("stock/7", GUID, 4294967311, 1793448030123, 4294967400, 1).fields()
        ),
        "not in ASCII": replace(VIEW, host="wéb", what="кассa"),
        "too long": replace(VIEW, thread="x" * 600, what="y" * 600),
    }
    texts = {name: payload.encode() for name, payload in payloads.items()}
    texts["release request"] = release_request.with_request(texts["view"], ASKED)
    texts["release request of Curator"] = release_request.with_request(b"10.0.0.1", ASKED)
    return {name: text.decode() for name, text in texts.items()}


def read_contender(text):
    payload = Payload.decode(text.encode())
    kind = Kind.PERMIT if payload is not None and payload.limit else Kind.LOCK
    name = f"{prefix(GUID, kind)}0000000007"
    node = Node(
        path=f"{BASE}/inventory/7/{name}", data=text.encode(), czxid=4294967310, owner=7, ctime=1e9, mtime=1e9 + 90
    )
    child = parse(name)
    assert child is not None
    read = only_set(to_json(ContenderInfo.from_node("inventory/7", child, node)))
    return {name: value for name, value in read.items() if name not in ("name", "path", "guid", "came")}


def operator_holds():
    of_hold = replace(VIEW, guid=GUIDS[Mark.OPERATOR], owner=0, session_timeout=0)
    of_person = {"by": "anna", "reason": "why", "seconds": 1.5}
    holds = {
        "person": of_person,
        "minimum hold": {**of_person, "minimum": True},
        "reservation": {**of_person, "by": "task shop.tasks.restock", "task_id": GUID},
    }
    return {name: operator_hold.hold_data(of_hold, **options).decode() for name, options in holds.items()}


def read_operator_hold(text):
    name = f"{prefix(GUIDS[Mark.OPERATOR])}0000000007"
    hold = read_hold("k", Node(path=f"{BASE}/k/{name}", data=text.encode(), czxid=4294967310, owner=0, ctime=1e9))
    return hold and {**to_json(hold), "minimum": hold.minimum, **({"task_id": hold.task_id} if hold.task_id else {})}


def markers_and_directories():
    return {
        "limit": markers.limit_marker(3),
        "cleared limit": markers.limit_marker(0),
        "acknowledgement": f"{acknowledgement.directory(BASE)}/{incidents()['hung']}",
        "directory for the clock": f"{path(BASE, 'k')}/{CLOCK_NODE}",
        "directory of the doctor": f"{BASE}/{doctor.FOLDER}",
        "record of beat": f"{BASE}/!beat/{escape('my schedule')}/{name_of_entry(SimpleNamespace(name='a/b c'))}",
        "record of beat, long": name_of_entry(SimpleNamespace(name="ä" * 200)),
        "reservation": path(BASE, reservations.lock_key(lifecycle.unique_key(task(), "feed/7"))),
        "reservation of the one that waits": path(BASE, reservations.lock_key(lifecycle.waiting_key(task(), "feed/7"))),
        "reservation, ten digits": path(BASE, reservations.lock_key("task/a/1234567890")),
        "reservation, its guid": operator_hold.guid_of_task(GUID),
    }


def records():
    run = RunRecord(entry="a/b c", at=NOON, count=7, token=4294967303, leader="web-1:42")
    data_of = {
        "limit": LimitRecord(by="anna", reason="slow", before=5, id=GUID).encode(),
        "acknowledgement": Acknowledgement(title="It hangs", by="anna", reason="I look", ends=1793534400.5).encode(),
        "beat": run.encode(),
    }
    return {name: data.decode() for name, data in data_of.items()}


def read_record(text):
    """Return what others read in a record. Its fields tell its kind."""
    data, fields = text.encode(), json.loads(text)
    if "last_run_at" in fields:
        decoded = RunRecord.decode(Node(path="/r", data=data, czxid=1, owner=0, version=3))
    elif "title" in fields:
        decoded = Acknowledgement.decode(data)
    else:
        decoded = LimitRecord.decode(data)
    unknown = getattr(decoded, "unknown", b"")
    read = {name: value for name, value in asdict(decoded).items() if name not in ("version", "unknown")}
    return plain({**read, **({"unknown": unknown.decode()} if unknown else {})})


def passed_on():
    holder = TokenHolder(host="web-1", pid=42, guid=GUID)
    token = VerifiedToken(
        key="inventory/7", token=4294967303, holder=holder, issued=1793534400.5, lease_until=1793534408.25
    )
    addresses = Addresses(grpc="c1:50051", http="https://c1:8080")
    return {
        "signed token": seal(token, Keys([KEY])),
        "addresses in a lease id": coordinator._signer.sign_object(addresses),
    }


def read_passed_on(text):
    if text.count(".") == 1:
        return coordinator._addresses(text)._asdict()
    return plain(asdict(unseal(text, Keys([KEY]))))


SEGMENTS = ["plain-name_1.0~a:b@c=d+e,f", "a/b", "50%", "é", "e\u0301", "1234567890", "tel-123456789", "..."]
VALUES = {
    "int": 7,
    "negative int": -5,
    "bool": True,
    "decimal": decimal.Decimal("1.50"),
    "float": 1.5,
    "negative zero": -0.0,
    "large float": 1e22,
    "choice": Size.SMALL,
    "uuid": uuid.UUID(int=10),
    "date": datetime.date(2026, 11, 1),
    "time": datetime.time(12, 30),
    "moment": NOON,
    "moment, other zone": NOON.astimezone(datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))),
    "moment without a zone": NOON.replace(tzinfo=None),
    "model": User(pk=7),
    "list": (1, "b", None, True, Size.SMALL, User(pk=7)),
    "empty list": [],
    "model with a text as key": User(pk="a b"),
    "dict": {2: [uuid.UUID(int=1)], "1": None},
    "ten digits": 1234567890,
}
TEMPLATES = {
    "literal": ("plain/name", {}),
    "field": ("inventory/{sku}", {"sku": "a/b"}),
    "field, percent": ("inventory/{sku}", {"sku": "50%", "other": None}),
    "field behind a dash": ("invoice-{id}", {"id": "2026-11"}),
    "two fields, colon in the first": ("{a}:{b}", {"a": "x:y", "b": "z"}),
    "two fields, colon in the second": ("{a}:{b}", {"a": "x", "b": "y:z"}),
    "two fields, spaces": ("{a} - {b}", {"a": "x - y", "b": "z"}),
    "attribute": ("a/{order.number}", {"order": SimpleNamespace(number="2026/1")}),
    "attribute of an attribute": ("a/{user.auth.name}", {"user": SimpleNamespace(auth=SimpleNamespace(name="Ann"))}),
    "braces": ("{{x}}/{x}", {"x": 1}),
    "braces around a field": ("{{{x}}}", {"x": 1}),
    "model": ("pay/{user}", {"user": User(pk=7)}),
    "ten digits": ("orders/{id}", {"id": 1234567890}),
    "ten digits of two fields": ("orders/{a}-{b}", {"a": 1, "b": 234567890}),
    "ten digits in the middle": ("orders/{id}/lines", {"id": 1234567890}),
    "ten digits of two parts": ("orders/n{id}0", {"id": 123456789}),
    "digits between fields": ("{a}8{b}", {"a": 1, "b": 179542018}),
    "digest between digits": ("{a}9{x:digest}9{b}", {"a": "19", "x": "https://example.com/?q={x}&r= y", "b": "29"}),
    "digest of a number": ("feed/{x:digest}", {"x": 7}),
    "digest of another normal form": ("feed/{x:digest}", {"x": "e\u0301"}),
    "digest of a line": ("feed/{x:digest}", {"x": "a\n"}),
    "digest of a surrogate": ("feed/{x:digest}", {"x": "\udcff"}),
    "digest of an emoji": ("feed/{x:digest}", {"x": "😀"}),
    "digest of a long text": ("feed/{x:digest}", {"x": "x" * 5_000}),
}


def keys():
    segments = {f"segment: {text!a}": escape(text) for text in SEGMENTS}
    values = {f"value: {name}": text_of(value, "field") for name, value in VALUES.items()}
    templates = {f"template: {name}": Template.parse(text).render(fields) for name, (text, fields) in TEMPLATES.items()}
    return {
        **segments,
        **values,
        **templates,
        "directory": path(BASE, "orders/1234567890/n1-123456789/a%2Fb"),
        "several locks, for a unique task": joined(["b", "a", "a"]),
        "leader of a schedule": beat.LOCK,
        "fence of a signed token": DatabaseTokens().prefix + "inventory/7",
        "fence, long": shortened("x" * 256, MAX_NAME),
        "unique task": lifecycle.unique_key(task(), "feed/7"),
        "task that waits": lifecycle.waiting_key(task(), "feed/7"),
        "id of a task, long": messages.short_id("x" * 65),
    }


def incidents():
    holder = SimpleNamespace(token=4294967303)
    made = (
        Hung(keys=("b", "a"), holders=(("a", holder),)),
        Host(host="web-1", pid=42),
        Broken(host="web-1", pid=42, since=NOON),
    )
    return {incident.cause: incident.identity for incident in made}


def task():
    app = Celery("formats", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_queue = str(uuid.uuid4())  # the broker is shared by all applications of a process

    @app.task(name="shop.tasks.restock", shared=False)
    def restock(): ...

    return restock


def begin(running, headers):
    request = {"retries": 0, "called_directly": False, "is_eager": False}
    request["delivery_info"] = {messages.QUEUE_KEY: running.app.conf.task_default_queue}
    running.push_request(id=GUID, args=[], kwargs={}, headers=headers, **request)


def sent_again(send, **headers):
    """Return our headers of the message that `send` sends of a running task, which has these headers already."""
    running = task()
    begin(running, headers)
    try:
        send(running)
    except Retry:
        pass
    finally:
        running.pop_request()
    with (
        running.app.connection_for_read() as connection,
        connection.SimpleQueue(running.app.conf.task_default_queue) as queue,
    ):
        message = queue.get(block=False)
        message.ack()
    return json.dumps({name: value for name, value in message.headers.items() if name.startswith("zklock_")})


def headers():
    error = ZkLockError("busy")
    run = RunRecord(entry="a/b c", at=NOON, count=7, token=4294967303)
    texts = {
        header: sent_again(partial(messages.send_again, header=header, error=error), **{header: 1})
        for header in (messages.CONFLICTS_HEADER, messages.LOST_HEADER, messages.LATE_HEADER)
    }
    first = {
        messages.MESSAGE_HEADER: GUID,
        lifecycle.UNIQUE_HEADER: "task/a/b",
        lifecycle.WAITING_HEADER: "waiting/a/b",
    }
    return {
        **{f"sent again: {name}": text for name, text in texts.items()},
        "all other headers are kept": sent_again(
            lambda task: messages.send_again(task, messages.CONFLICTS_HEADER, error), **first, zklock_new={"x": 1}
        ),
        "sent again before the end of its timeout": sent_again(
            lambda task: messages.send_again(task, messages.CONFLICTS_HEADER, error, **{messages.WAITED_HEADER: 1500})
        ),
        "after a rejection": sent_again(
            lambda task: messages.send_again(task, messages.CONFLICTS_HEADER, error),
            **{"x-death": [{"queue": "a", "reason": "rejected", "count": 2}]},
        ),
        "copy that is sent again": sent_again(
            lambda task: messages.send_again(task, messages.COPIES_HEADER, error), **{messages.COPY_HEADER: copies.NONE}
        ),
        "beat": json.dumps({beat.HEADER: run.header()}),
    }


def read_headers(text):
    given = json.loads(text)
    request = Context(headers=given)
    about = messages.describe(task(), {"id": GUID, "headers": given}).about
    read = {
        **{header: messages.count(request, header) for header in COUNTS},
        **{header: lifecycle._key(given, header) for header in (lifecycle.UNIQUE_HEADER, lifecycle.WAITING_HEADER)},
        **{name: about.get(name) for name in ("message", "redelivered")},
    }
    if messages.HISTORY_HEADER in given:
        message = SimpleNamespace(delivery_info={}, message=SimpleNamespace(headers=given), request_dict={})
        messages._restore_history(message, SimpleNamespace(task_consumer=SimpleNamespace(queues=[])))
        read["x-death"] = given["x-death"]
    if messages.COPY_HEADER in given:
        read["without a result"] = outcome(given, has_result=False)
        read["with a result"] = outcome(given, has_result=True)
    return only_set(read)


COUNTS = (
    messages.CONFLICTS_HEADER,
    messages.LOST_HEADER,
    messages.LATE_HEADER,
    messages.COPIES_HEADER,
    messages.WAITED_HEADER,
)


def outcome(given, *, has_result):
    running = task()
    begin(running, given)
    if has_result:
        running.backend.store_result(GUID, None, "SUCCESS")
    try:
        copies.check_done(running)
    except Ignore:
        return "ends"
    finally:
        running.backend.forget(GUID)
        running.pop_request()
    return "does the work"


def only_set(values):
    return {name: value for name, value in values.items() if value not in (None, "", 0, False, {}, [])}


def plain(value):
    return json.loads(json.dumps(value, default=lambda other: getattr(other, "value", None) or str(other)))


def same(text):
    """Read nothing: no program takes the text apart."""
    return None


TEXTS = {
    "names of contenders": (names_of_contenders, read_name),
    "contenders": (contenders, read_contender),
    "operator holds": (operator_holds, read_operator_hold),
    "other znodes": (
        markers_and_directories,
        lambda text: read_name(text) if text.startswith("!") else None,
    ),
    "records": (records, read_record),
    "texts that are passed on": (passed_on, read_passed_on),
    "keys": (keys, lambda text: key_of(BASE, text) if text.startswith(BASE) else None),
    "incidents": (incidents, same),
    "headers of tasks": (headers, read_headers),
}
"""For each kind of text: what is written today, and what is read in any text of the kind."""
