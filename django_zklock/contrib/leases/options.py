"""The settings of the lock coordinator: its clients, and what each may do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from django_zklock import conf
from django_zklock.conf.table import (
    SECONDS_ADVICE,
    InvalidValue,
    Problems,
    Row,
    is_text,
    positive_seconds,
    read_keys,
    whole_number,
)
from django_zklock.core.queue.command_line import command
from django_zklock.exceptions import InvalidLockName
from django_zklock.names.template import own_key

KINDS: Final = ("lock", "read", "write", "semaphore")
_HASH: Final = re.compile(r"[0-9a-f]{64}\Z")
_EXAMPLE: Final = 'For example {"CLIENTS": {"billing": {"TOKENS": ["<SHA-256>"], "PREFIXES": ["billing"]}}}.'


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClient:
    """A client of the coordinator, and what it may do."""

    name: str
    tokens: tuple[str, ...] = field(default=(), repr=False)
    """The SHA-256 hashes of its bearer tokens, in hexadecimal."""
    certificates: tuple[str, ...] = ()
    """The names in its TLS certificates: the common name, or a subject alternative name."""
    prefixes: tuple[str, ...] = ("",)
    """Escaped keys. It may lock these, and all keys below them."""
    kinds: tuple[str, ...] = KINDS
    max_leases: int = 10_000
    """How many leases it may have or wait for, at one coordinator."""
    max_waiting: int = 10_000
    """How many of its calls may wait, and how many streams it may open, at one coordinator."""
    max_rate: float = 500.0
    """The requests a second that it may send, on average. With the default, those of one client hardly delay others."""

    def may_lock(self, key: str) -> bool:
        """Return whether it may lock this key."""
        return any(not prefix or key == prefix or key.startswith(f"{prefix}/") for prefix in self.prefixes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    """`ZKLOCK["LEASES"]`, checked. Times in seconds."""

    clients: Mapping[str, LeaseClient] = field(default_factory=lambda: MappingProxyType({}))
    """The clients by name. If there are none, the coordinator serves all programs of its own machine."""
    max_term: float = 300.0
    """How long a lease may last after the last message of its client."""
    max_wait: float = 3600.0
    """How long one call may wait in the queue."""


def current() -> LeaseOptions:
    """Return the options in the settings."""
    options: LeaseOptions = conf.current().added.get("LEASES", LeaseOptions())
    return options


def read_leases(value: object, where: str, problems: Problems) -> LeaseOptions:
    """Return the checked options, and add their problems to `problems`."""
    if not isinstance(value, Mapping):
        problems.add("E016", f"{where} is a {type(value).__name__}, not a dict.", _EXAMPLE)
        return LeaseOptions()
    terms = read_keys(value, _TERMS, where, problems, more=("CLIENTS",))
    clients = value.get("CLIENTS", {})
    if not isinstance(clients, Mapping) or not all(is_text(name) for name in clients):
        problems.add("E016", f'{where}["CLIENTS"] is not a dict of clients by name.', _EXAMPLE)
        clients = {}
    checked = {name: _client(name, entry, f'{where}["CLIENTS"]["{name}"]', problems) for name, entry in clients.items()}
    _check_distinct(checked, where, problems)
    return LeaseOptions(clients=MappingProxyType(checked), **terms)


def _client(name: str, entry: object, where: str, problems: Problems) -> LeaseClient:
    if not isinstance(entry, Mapping):
        problems.add("E016", f"{where} is a {type(entry).__name__}, not a dict.", _EXAMPLE)
        return LeaseClient(name=name)
    if not entry.get("TOKENS") and not entry.get("CERTIFICATES"):
        problems.add("E016", f"{where} has neither TOKENS nor CERTIFICATES, so nobody can be this client.", _EXAMPLE)
    return LeaseClient(name=name, **read_keys(entry, _CLIENT_KEYS, where, problems))


def _check_distinct(clients: Mapping[str, LeaseClient], where: str, problems: Problems) -> None:
    """Refuse a secret that two clients share: the coordinator could not tell them apart."""
    owners: dict[str, str] = {}
    for client in clients.values():
        for secret in (*client.tokens, *client.certificates):
            if owners.setdefault(secret, client.name) != client.name:
                both = f'"{owners[secret]}" and "{client.name}"'
                problems.add("E016", f'{where}["CLIENTS"] has the same token or certificate for {both}.', "Remove one.")


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        raise InvalidValue("is not a list of texts")
    return tuple(value)


def _tokens(value: object) -> tuple[str, ...]:
    tokens = _texts(value)
    if not all(_HASH.match(token) for token in tokens):
        hint = f"Give the SHA-256 of a token in hexadecimal. `{command('serve --new-token')}` makes both."
        raise InvalidValue("has a value that is no hash of a token", hint=hint)
    return tokens


def _kinds(value: object) -> tuple[str, ...]:
    kinds = _texts(value)
    if not set(kinds) <= set(KINDS):
        raise InvalidValue("has an unknown kind", hint=f"Known kinds: {', '.join(KINDS)}.")
    return kinds


def _prefixes(value: object) -> tuple[str, ...]:
    """Read prefixes, and escape them like keys."""
    prefixes = []
    for text in _texts(value):
        try:
            prefixes.append(own_key(text.strip("/")) if text.strip("/") else "")
        except InvalidLockName as error:
            raise InvalidValue(f"has {text!r}, which is no part of a key: {error}") from None
    return tuple(prefixes)


def _rate(value: object) -> float:
    return float(value) if isinstance(value, float) and value >= 0 else whole_number(value)


_NUMBER: Final = Row("E016", whole_number, "Leave it out for the default.")
_TERMS: Final = dict.fromkeys(("MAX_TERM", "MAX_WAIT"), Row("E016", positive_seconds, SECONDS_ADVICE))
_CLIENT_KEYS: Final = {
    "TOKENS": Row("E016", _tokens, _EXAMPLE),
    "CERTIFICATES": Row("E016", _texts, _EXAMPLE),
    "PREFIXES": Row("E016", _prefixes, _EXAMPLE),
    "KINDS": Row("E016", _kinds, _EXAMPLE),
    "MAX_LEASES": _NUMBER,
    "MAX_WAITING": _NUMBER,
    "MAX_RATE": Row("E016", _rate, "Leave it out for the default."),
}
