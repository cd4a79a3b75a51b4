"""A connection between two processes of a run: lines of JSON over TCP."""

import contextlib
import json
import select
import socket
import threading
import time
from typing import Any, NamedTuple

from mlstm_jax.errors import KnownError

# The values of some 5,000 processes, gathered in one message.
LONGEST = 16 << 20
_LONGEST_TEXT = 10_000

Json = Any


class Stop(NamedTuple):
    """Why a process stops, as it tells the others."""

    text: str
    source: str  # which process, on which host
    code: int  # what it exits with
    now: bool = False  # there is nothing to wait for

    def message(self) -> dict[str, Json]:
        """Return it as a message."""
        text = self.text[:_LONGEST_TEXT]
        return {"stop": text, "source": self.source, "code": self.code, "now": self.now}

    @classmethod
    def read(cls, message: dict[str, Json]) -> "Stop":
        """Return the one that a message holds; ValueError where it holds none."""
        text, source, code = (message.get(name) for name in ("stop", "source", "code"))
        if not (isinstance(text, str) and isinstance(source, str) and type(code) is int):
            raise ValueError("not a reason to stop")
        if not 0 <= code < 256:
            raise ValueError("not an exit code")
        return cls(text[:_LONGEST_TEXT], source, code, message.get("now") is True)


class Connection:
    """One connection, and who is at its other end.

    A message has to be whole within a time, however slowly its bytes come.
    """

    def __init__(self, sock: socket.socket, index: int, host: str) -> None:
        self.index, self.host = index, host
        self.sock = sock
        self._received = bytearray()
        self._searched = 0  # so many bytes of it hold no end of a line
        self._sending = threading.Lock()

    def __str__(self) -> str:
        return f"process {self.index} ({self.host})"

    def send(self, **message: Json) -> None:
        """Send one message; a connection that is gone is noticed by the reader.

        Raises KnownError where it is longer than the other end reads.
        """
        line = json.dumps(message).encode() + b"\n"
        if len(line) > LONGEST:
            raise KnownError(
                f"a message of {len(line):,} bytes to {self} is too long; {LONGEST:,} can be sent."
            )
        with contextlib.suppress(OSError), self._sending:
            self.sock.sendall(line)

    def receive(self, seconds: float) -> dict[str, Json]:
        """Return the next message.

        Raises:
            TimeoutError: it was not whole in time.
            OSError, EOFError: none will come.
            ValueError: what came is no message.
        """
        deadline = time.monotonic() + seconds
        readable = select.poll()
        readable.register(self.sock, select.POLLIN)
        while (message := self._next(LONGEST)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not readable.poll(left * 1000):
                raise TimeoutError
            self._fill()
        return message

    def take(self, longest: int) -> dict[str, Json] | None:
        """Read once what has come; return the next message, or None if it is not whole yet.

        Raises as `receive` does; ValueError also where a message is longer than `longest` bytes.
        """
        self._fill()
        return self._next(longest)

    def is_silent(self) -> bool:
        """Whether the other end is there, and has sent nothing more; of a non-blocking one."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return not self._received
        except OSError:
            return False  # it is gone
        return False  # it has sent more, or ended

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def _fill(self) -> None:
        with contextlib.suppress(BlockingIOError):
            chunk = self.sock.recv(1 << 16)
            if not chunk:
                raise EOFError
            self._received += chunk

    def _next(self, longest: int) -> dict[str, Json] | None:
        end = self._received.find(b"\n", self._searched)
        self._searched = len(self._received)
        if (self._searched if end < 0 else end) >= longest:
            raise ValueError("too long")
        if end < 0:
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        try:
            message = json.loads(line)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(message, dict):
            raise ValueError("not an object")
        return message
