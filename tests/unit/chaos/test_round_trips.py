"""The proxy of the tests counts round trips."""

from __future__ import annotations

from support.proxy import (
    CONNECT,
    CREATE,
    DELETE,
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    PING,
    Frame,
    count_round_trips,
)


def test_round_trips_ignore_pings_and_other_connections() -> None:
    """Only a connection's own replies start its next batch."""

    def frame(connection: int, request: bool, xid: int, opcode: int | None) -> Frame:
        return Frame(connection, request, xid, opcode, 0.0)

    frames = [
        frame(1, True, 0, CONNECT),
        frame(1, False, 0, CONNECT),
        frame(1, True, 1, CREATE),
        frame(2, True, 1, CREATE),
        frame(2, False, 1, CREATE),
        frame(1, True, 2, GET_CHILDREN),
        frame(1, True, -2, PING),
        frame(1, False, -2, PING),
        frame(1, True, 3, GET_DATA),
        frame(1, False, -1, None),
        frame(1, True, 4, EXISTS),
    ]
    assert count_round_trips(frames) == 2  # one on each connection
    assert count_round_trips([*frames, frame(1, False, 1, CREATE), frame(1, True, 5, DELETE)]) == 3
