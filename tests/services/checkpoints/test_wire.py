"""The messages between a supervisor and its contributors."""

import json
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints.wire import MESSAGE_BYTES, Closed, Kind, Line, pack, receive, send, unpack


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_what_is_packed_is_unpacked(parts: list[bytes]) -> None:
    """Also where parts are empty."""
    assert unpack(pack(parts)) == parts


def test_a_part_that_is_cut_off_is_refused() -> None:
    """And not taken for a shorter one."""
    with pytest.raises(ValueError, match="cut off"):
        unpack(pack([b"abc"])[:-1])


def test_a_line_gathers_tells_and_waits_at_points() -> None:
    """Each with its own kind of message."""
    ours, theirs = socket.socketpair()
    our_points, their_points = socket.socketpair()
    line = Line(theirs, their_points)
    heard: list[object] = []

    def contributor() -> None:
        line.tell(update=3)
        heard.append(line.gather(b"own"))
        line.point("staged")
        heard.append("went on")

    with ours, theirs, our_points, their_points:
        thread = threading.Thread(target=contributor)
        thread.start()
        kind, told = receive(ours)
        assert (kind, json.loads(told)) == (Kind.TELL, {"update": 3})
        assert receive(ours) == (Kind.GATHER, b"own")
        send(ours, Kind.GATHER, pack([b"own", b"other"]))
        assert receive(our_points) == (Kind.POINT, b"staged")
        assert heard == [[b"own", b"other"]]
        send(our_points, Kind.POINT, b"")
        thread.join(10)
        assert heard[-1] == "went on"


def test_a_side_that_is_gone_is_closed() -> None:
    """A contributor without its supervisor ends; a supervisor learns of a death."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(Closed):
        receive(ours)


def test_a_length_that_no_message_has_is_refused_before_it_is_read() -> None:
    """Nobody makes the other side take up memory."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"t" + (MESSAGE_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises(Closed, match="none of ours"):
            receive(ours)
