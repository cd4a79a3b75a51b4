"""Messages over one connection."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from mlstm_jax.distributed.connection import Connection

from mlstm_jax.distributed import connection
from mlstm_jax.errors import KnownError


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """One end as a Peer, the other as it is."""
    one, other = socket.socketpair()
    with one, other:
        yield Connection(one, 1, "node2"), other


def test_a_message_is_read_however_it_comes(ends: tuple[Connection, socket.socket]) -> None:
    here, there = ends
    there.sendall(b'{"value": 1}\n{"value": 2}\n{"val')
    assert here.receive(1) == {"value": 1}
    assert here.receive(1) == {"value": 2}
    there.sendall(b'ue": 3}\n')
    assert here.receive(1) == {"value": 3}
    there.close()
    with pytest.raises(EOFError):
        here.receive(1)


def test_a_message_that_drips_has_no_more_time(ends: tuple[Connection, socket.socket]) -> None:
    here, there = ends
    done = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            # In the end the message is complete, for one that waits as long as something comes.
            for _ in range(400):
                if done.wait(0.05):
                    return
                there.sendall(b" ")
            there.sendall(b"{}\n")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            here.receive(0.5)
    finally:
        done.set()
        thread.join()


def test_a_long_message_passes_and_one_that_is_too_long_is_the_senders_error(ends):
    here, there = ends
    value = "a" * (connection.LONGEST - 1000)
    sender = threading.Thread(target=Connection(there, 0, "node1").send, kwargs={"value": value})
    sender.start()
    assert here.receive(20) == {"value": value}
    sender.join()
    with pytest.raises(KnownError, match=r"of 16,777,230 bytes to process 1 \(node2\) is too long"):
        here.send(value="a" * connection.LONGEST)
