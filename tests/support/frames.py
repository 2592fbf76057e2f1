"""The frames of an error, as error reporters and debug pages show them."""

from types import ModuleType


def frames_of(error, seen=None):
    """Yield the frames of the error, and of all that it follows from, also if that is suppressed."""
    seen = set() if seen is None else seen
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
    yield from frames_of(error.__cause__, seen)
    yield from frames_of(error.__context__, seen)


def frames_with(error, secret):
    return [
        f"{frame.f_code.co_name}: {name}"
        for frame in frames_of(error)
        if "/tests/" not in frame.f_code.co_filename
        for name, value in frame.f_locals.items()
        if secret in repr(value) + repr({} if isinstance(value, ModuleType) else getattr(value, "__dict__", {}))
    ]
