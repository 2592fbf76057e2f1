"""The names of znodes that processes of other releases, and of other libraries, find: one list, written by hand."""

import datetime
import decimal
import enum
import uuid
from types import SimpleNamespace

from django.contrib.auth.models import User

from django_zklock.core.queue.nodes import Kind, Mark

GUIDS = {
    Mark.OWN: "0c1a3a55-ce0a-8d7b-9a4f-a8e7f2e1d111",
    Mark.REPLACEABLE: "0e573a55-ce0a-8d7b-9a4f-a8e7f2e1d111",
    Mark.OPERATOR: "0be73a55-ce0a-8d7b-9a4f-a8e7f2e1d111",
}
PREFIXES = {
    (Kind.LOCK, "curator"): "_c_0c1a3a55-ce0a-8d7b-9a4f-a8e7f2e1d111-lock-",
    (Kind.READ, "curator"): "_c_0c1a3a55-ce0a-8d7b-9a4f-a8e7f2e1d111-__READ__",
    (Kind.WRITE, "curator"): "_c_0c1a3a55-ce0a-8d7b-9a4f-a8e7f2e1d111-__WRIT__",
    (Kind.PERMIT, "curator"): "_c_0c1a3a55-ce0a-8d7b-9a4f-a8e7f2e1d111-lease-",
    (Kind.LOCK, "kazoo"): "0c1a3a55ce0a8d7b9a4fa8e7f2e1d111__lock__",
    (Kind.READ, "kazoo"): "0c1a3a55ce0a8d7b9a4fa8e7f2e1d111__rlock__",
    (Kind.WRITE, "kazoo"): "0c1a3a55ce0a8d7b9a4fa8e7f2e1d111__lock__",
}
"""Before the ten digits, by kind and grammar."""
OF_OTHERS = {
    "_c_2bd53a55-ce0a-4d7b-9a4f-a8e7f2e1d111-lock-0000000005": (Kind.LOCK, 5),
    "_c_2bd53a55-ce0a-4d7b-9a4f-a8e7f2e1d111-lock--2147483648": (Kind.LOCK, -2147483648),
    "_c_2bd53a55-ce0a-4d7b-9a4f-a8e7f2e1d111-__READ__0000000005": (Kind.READ, 5),
    "_c_2bd53a55-ce0a-4d7b-9a4f-a8e7f2e1d111-__WRIT__-000000005": (Kind.WRITE, -5),
    "2bd53a55ce0a4d7b9a4fa8e7f2e1d111__lock__0000000012": (Kind.LOCK, 12),
    "_c_2bd53a55-ce0a-4d7b-9a4f-a8e7f2e1d111-lock--000000005": (Kind.LOCK, -5),
    "2bd53a55ce0a4d7b9a4fa8e7f2e1d111__lock__-2147483647": (Kind.LOCK, -2147483647),
    "2bd53a55ce0a4d7b9a4fa8e7f2e1d111__rlock__0000000012": (Kind.READ, 12),
}
"""Names that Curator and kazoo write: the kind and the number."""
REFUSED = [
    "_c_2bd53a55-ce0a-4d7b-9a4f-a8e7f2e1d111-lease-0000000001",
    "_c_2bd53a55-ce0a-4d7b-9a4f-a8e7f2e1d111-latch-0000000001",
    "x-0000000001",
]
"""Names of unknown kinds. The queue fails closed."""
SEGMENTS = {
    "plain-name_1.0~a:b@c=d+e,f": "plain-name_1.0~a:b@c=d+e,f",
    "a/b": "a%2Fb",
    "50%": "50%25",
    "\xe9": "%C3%A9",
    "e\u0301": "%C3%A9",
    "1234567890": "123456789%30",
    "tel-123456789": "tel-12345678%39",
    "...": "...",
}
"""A part of a key, as it is in a path."""


class Size(str, enum.Enum):  # noqa: UP042 - as in a project
    SMALL = "small"


NOON = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.UTC)
VALUES = [
    (7, "7"),
    (-5, "-5"),
    (decimal.Decimal("1.50"), "1.5"),
    (Size.SMALL, "small"),
    (uuid.UUID(int=10), "00000000-0000-0000-0000-00000000000a"),
    (datetime.date(2026, 11, 1), "2026-11-01"),
    (NOON, "2026-11-01T12:00:00+00:00"),
    (NOON.astimezone(datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))), "2026-11-01T12:00:00+00:00"),
    (NOON.replace(tzinfo=None), "2026-11-01T12:00:00"),
    (User(pk=7), "auth.user:7"),
    (User(pk="a b"), "auth.user:a b"),
    (1234567890, "1234567890"),
]
"""A value of a field, and its text."""
TEMPLATES = [
    ("plain/name", {}, "plain/name"),
    ("inventory/{sku}", {"sku": "a/b"}, "inventory/a%2Fb"),
    ("inventory/{sku}", {"sku": "50%", "other": None}, "inventory/50%25"),
    ("invoice-{id}", {"id": "2026-11"}, "invoice-2026-11"),
    ("{a}:{b}", {"a": "x:y", "b": "z"}, "x%3Ay:z"),
    ("{a}:{b}", {"a": "x", "b": "y:z"}, "x:y%3Az"),
    ("{a} - {b}", {"a": "x - y", "b": "z"}, "x%20%2D%20y%20-%20z"),
    ("a/{order.number}", {"order": SimpleNamespace(number="2026/1")}, "a/2026%2F1"),
    ("a/{user.auth.name}", {"user": SimpleNamespace(auth=SimpleNamespace(name="Ann"))}, "a/Ann"),
    ("{{x}}/{x}", {"x": 1}, "%7Bx%7D/1"),
    ("{{{x}}}", {"x": 1}, "%7B1%7D"),
    ("pay/{user}", {"user": User(pk=7)}, "pay/auth.user:7"),
    ("orders/{id}", {"id": 1234567890}, "orders/1234567890"),
    ("orders/{a}-{b}", {"a": 1, "b": 234567890}, "orders/1-234567890"),
    ("orders/{id}/lines", {"id": 1234567890}, "orders/1234567890/lines"),
    ("orders/n{id}0", {"id": 123456789}, "orders/n1234567890"),
    ("{a}8{b}", {"a": 1, "b": 179542018}, "18179542018"),
    (
        "{a}9{x:digest}9{b}",
        {"a": "19", "x": "https://example.com/?q={x}&r= y", "b": "29"},
        "1%3996c6006c1b5cf562d2f63d7a5c0177880929",
    ),
    ("feed/{x:digest}", {"x": 7}, "feed/7902699be42c8a8e46fbbb4501726517"),
    ("feed/{x:digest}", {"x": "e\u0301"}, "feed/4a99557e4033c3539de2eb65472017ca"),
    ("feed/{x:digest}", {"x": "a\n"}, "feed/87428fc522803d31065e7bce3cf03fe4"),
    ("feed/{x:digest}", {"x": "\udcff"}, "feed/8f1d0f9c88065271ef888ba5a7790e55"),
    ("feed/{x:digest}", {"x": "😀"}, "feed/f0443a342c5ef54783a111b51ba56c93"),
    ("feed/{x:digest}", {"x": "x" * 5_000}, "feed/c59d3c0480cc2d71d8f646e735e92da6"),
]
"""A template, its fields, and the key."""
