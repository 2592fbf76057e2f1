"""A store of fencing tokens for tests that need no database."""

from django_zklock.exceptions import StaleToken


class MemoryTokens:
    """The highest token of each key, in memory, for one thread."""

    def __init__(self):
        self._highest = {}

    def advance(self, key, token):
        if token < self._highest.get(key, 0):
            raise StaleToken(f"The token {token} of {key!r} is out of date.", lock=key)
        self._highest[key] = token
