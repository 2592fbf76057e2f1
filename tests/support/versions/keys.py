"""The locks of the project."""

WORK = ("k0", "k1", "k2", "2026112600")  # one looks like the end of a contender's name
SKIP = "skip"
SLOW = tuple(f"slow{number}" for number in range(6))
PAY = ("p0", "p1")
UNIQUE = ("u0", "2026112601")
READ_WRITE = "prices"
SEMAPHORE = "printer"
PERMITS = 2
MOST_PERMITS = 3  # that an operator sets
LINGER = "hot"
SETS = ("set/a", "set/b", "set/c")
LEADER = "feed"
OPERATED = "nightly"


def unique(key):
    return f"once/{key}/do"


COUNTED = (*WORK, SKIP, *SLOW, *PAY, *map(unique, UNIQUE))  # those that guard a counter
