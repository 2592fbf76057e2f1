"""How many files, sockets among them, this process may have open."""

from __future__ import annotations

import warnings

try:
    import resource
except ImportError:  # pragma: no cover - Windows has no such limit
    resource = None  # type: ignore[assignment]


def more_files() -> bool:
    """Raise the soft limit to the hard one; False, with a warning that says what to do, if that is no more."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 65536 if hard == resource.RLIM_INFINITY else hard
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return True
    warnings.warn(
        "The dev server is out of file descriptors and can take no more connections; "
        "raise the limit of this process (`ulimit -Hn`).",
        ResourceWarning,
        stacklevel=2,
    )
    return False
