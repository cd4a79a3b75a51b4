"""A connection between two processes of a run: lines of JSON over TCP."""

import contextlib
import json
import select
import socket
import threading
import time
from typing import Any, NamedTuple

from mlstm_jax.errors import KnownError

# In bytes; enough to gather the values of about 5,000 processes in one message.
LONGEST = 16 << 20
_LONGEST_TEXT = 10_000

Json = Any


class Stop(NamedTuple):
    """The reason why a process stops, as it sends it to the others."""

    text: str
    source: str  # the process and its host
    code: int  # its exit code
    now: bool = False  # the others must end without waiting

    def message(self) -> dict[str, Json]:
        """Return the reason as a message."""
        text = self.text[:_LONGEST_TEXT]
        return {"stop": text, "source": self.source, "code": self.code, "now": self.now}

    @classmethod
    def read(cls, message: dict[str, Json]) -> "Stop":
        """Return the reason that a message contains; raise ValueError if it contains none."""
        text, source, code = (message.get(name) for name in ("stop", "source", "code"))
        if not (isinstance(text, str) and isinstance(source, str) and type(code) is int):
            raise ValueError("not a reason to stop")
        if not 0 <= code < 256:
            raise ValueError("not an exit code")
        return cls(text[:_LONGEST_TEXT], source, code, message.get("now") is True)


class Connection:
    """One connection, and the process at its other end.

    A message must be complete within a time limit, however slowly its bytes arrive.
    """

    def __init__(self, sock: socket.socket, index: int, host: str) -> None:
        self.index, self.host = index, host
        self.sock = sock
        self._received = bytearray()
        self._searched = 0  # number of received bytes that contain no end of a line
        self._sending = threading.Lock()

    def __str__(self) -> str:
        return f"process {self.index} ({self.host})"

    def send(self, **message: Json) -> None:
        """Send one message; if the connection is gone, the reader notices it.

        Raises KnownError if the message is longer than the other end accepts.
        """
        line = json.dumps(message).encode() + b"\n"
        if len(line) > LONGEST:
            raise KnownError(
                f"a message of {len(line):,} bytes to {self} is too long; the limit is {LONGEST:,}."
            )
        with contextlib.suppress(OSError), self._sending:
            self.sock.sendall(line)

    def receive(self, seconds: float) -> dict[str, Json]:
        """Return the next message.

        Raises:
            TimeoutError: the message was not complete in time.
            OSError, EOFError: no more messages will arrive.
            ValueError: the input is not a message.
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
        """Read once what has arrived; return the next message, or None if it is not complete yet.

        Raises as `receive` does; also ValueError if a message is longer than `longest` bytes.
        """
        self._fill()
        return self._next(longest)

    def is_silent(self) -> bool:
        """Whether a non-blocking connection is open and the other end has sent nothing more."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return not self._received
        except OSError:
            return False  # the connection is gone
        return False  # the other end has sent more, or has closed it

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
