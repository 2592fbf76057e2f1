"""The settings of the lock coordinator: its clients, and what each may do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from django_zklock.conf.errors import Problems, is_text, seconds
from django_zklock.exceptions import InvalidLockName
from django_zklock.queue import names

KINDS: Final = ("lock", "read", "write", "semaphore")
_CLIENT_KEYS: Final = ("TOKENS", "CERTIFICATES", "PREFIXES", "KINDS", "MAX_LEASES", "MAX_WAITING", "MAX_RATE")
_KEYS: Final = ("CLIENTS", "MAX_TERM", "MAX_WAIT")
_HASH: Final = re.compile(r"[0-9a-f]{64}\Z")
_EXAMPLE: Final = 'For example {"CLIENTS": {"billing": {"TOKENS": ["<SHA-256>"], "PREFIXES": ["billing"]}}}.'


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClient:
    """A client of the coordinator, and what it may do."""

    name: str
    tokens: tuple[str, ...] = field(default=(), repr=False)
    """The SHA-256 of each of its bearer tokens, in hexadecimal."""
    certificates: tuple[str, ...] = ()
    """The names in its TLS certificates: the common name, or a subject alternative name."""
    prefixes: tuple[str, ...] = ("",)
    """It may lock these keys, and those below them. Escaped, as keys are."""
    kinds: tuple[str, ...] = KINDS
    max_leases: int = 10_000
    """Leases that it may have at a time or wait for, at one coordinator."""
    max_waiting: int = 10_000
    """Calls of it that may wait at a time, and streams that it may have open, at one coordinator."""
    max_rate: float = 5000.0
    """Requests a second, on average."""

    def may_lock(self, key: str) -> bool:
        """Return whether it may lock this key."""
        return any(not prefix or key == prefix or key.startswith(f"{prefix}/") for prefix in self.prefixes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    """`ZKLOCK["LEASES"]`, checked. Times in seconds."""

    clients: Mapping[str, LeaseClient] = field(default_factory=lambda: MappingProxyType({}))
    """By name. Empty: the coordinator serves its own machine only, without asking who it is."""
    max_term: float = 300.0
    """The longest that a lease may last after the last sign of its client."""
    max_wait: float = 3600.0
    """The longest that one call may wait in line."""


def read_leases(value: object, where: str, found: Problems) -> LeaseOptions:
    """Return the checked options; add what is wrong with them to `found`."""
    if not isinstance(value, Mapping):
        found.add("E016", f"{where} is a {type(value).__name__}, not a dict.", _EXAMPLE)
        return LeaseOptions()
    found.add_unknown_keys(where, value, _KEYS)
    defaults = LeaseOptions()
    clients = value.get("CLIENTS", {})
    if not isinstance(clients, Mapping) or not all(is_text(name) for name in clients):
        found.add("E016", f'{where}["CLIENTS"] is not a dict of clients by name.', _EXAMPLE)
        clients = {}
    read = {name: _read_client(name, entry, f'{where}["CLIENTS"]["{name}"]', found) for name, entry in clients.items()}
    _check_distinct(read, where, found)
    return LeaseOptions(
        clients=MappingProxyType(read),
        max_term=_time(value.get("MAX_TERM", defaults.max_term), f'{where}["MAX_TERM"]', found),
        max_wait=_time(value.get("MAX_WAIT", defaults.max_wait), f'{where}["MAX_WAIT"]', found),
    )


def _time(value: object, where: str, found: Problems) -> float:
    number = seconds(value)
    if not number:
        found.add("E016", f"{where} is not a time above 0.", "Give seconds, or a timedelta.")
    return number or 1.0


def _read_client(name: str, entry: object, where: str, found: Problems) -> LeaseClient:
    if not isinstance(entry, Mapping):
        found.add("E016", f"{where} is a {type(entry).__name__}, not a dict.", _EXAMPLE)
        return LeaseClient(name=name)
    found.add_unknown_keys(where, entry, _CLIENT_KEYS)
    tokens = _texts(entry, "TOKENS", (), where, found)
    if not all(_HASH.match(token) for token in tokens):
        hint = "Give the SHA-256 in hexadecimal. `manage.py zklock serve --new-token` makes a token and its hash."
        found.add("E016", f'{where}["TOKENS"] has a value that is no hash of a token.', hint)
    kinds = _texts(entry, "KINDS", KINDS, where, found)
    if not set(kinds) <= set(KINDS):
        found.add("E016", f'{where}["KINDS"] has an unknown kind.', f"Known kinds: {', '.join(KINDS)}.")
    client = LeaseClient(
        name=name,
        tokens=tokens,
        certificates=_texts(entry, "CERTIFICATES", (), where, found),
        prefixes=tuple(_prefix(each, where, found) for each in _texts(entry, "PREFIXES", ("",), where, found)),
        kinds=kinds,
        **_numbers(entry, where, found),
    )
    if not client.tokens and not client.certificates:
        found.add("E016", f"{where} has neither TOKENS nor CERTIFICATES, so nobody can be this client.", _EXAMPLE)
    return client


def _prefix(text: str, where: str, found: Problems) -> str:
    """Return a prefix, escaped as the keys are."""
    text = text.strip("/")
    try:
        return names.own_key(text) if text else ""
    except InvalidLockName as error:
        found.add("E016", f'{where}["PREFIXES"] has {text!r}, which is no part of a key: {error}', _EXAMPLE)
        return text


def _texts(
    entry: Mapping[Any, Any], key: str, default: tuple[str, ...], where: str, found: Problems
) -> tuple[str, ...]:
    value = entry.get(key, default)
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        found.add("E016", f'{where}["{key}"] is not a list of texts.', _EXAMPLE)
        return default
    return tuple(value)


def _numbers(entry: Mapping[Any, Any], where: str, found: Problems) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for key, kinds in (("MAX_LEASES", int), ("MAX_WAITING", int), ("MAX_RATE", (int, float))):
        value = entry.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, kinds) or not value >= 0:
            found.add("E016", f'{where}["{key}"] is not a number from 0.', "Leave it out for the default.")
        else:
            numbers[key.lower()] = value
    return numbers


def _check_distinct(clients: Mapping[str, LeaseClient], where: str, found: Problems) -> None:
    """Two clients with one secret could not be told apart."""
    owners: dict[str, str] = {}
    for client in clients.values():
        for secret in (*client.tokens, *client.certificates):
            if owners.setdefault(secret, client.name) != client.name:
                what = f'"{owners[secret]}" and "{client.name}"'
                found.add("E016", f'{where}["CLIENTS"] has the same token or certificate for {what}.', "Remove one.")
