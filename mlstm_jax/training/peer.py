"""A connection between two processes of a run: lines of JSON over TCP."""

import contextlib
import json
import socket
import threading
import time
from typing import Any

from mlstm_jax.errors import UserError

_LONGEST_LINE = 1 << 20

Json = Any


class Peer:
    """One connection, and who is at its other end."""

    def __init__(self, connection: socket.socket, index: int, host: str) -> None:
        self.index, self.host = index, host
        self.connection = connection
        self.lines = connection.makefile("rb")
        self._sending = threading.Lock()

    def __str__(self) -> str:
        return f"process {self.index} ({self.host})"

    def send(self, **message: Json) -> None:
        """Send one message; a connection that is gone is noticed by the reader."""
        with contextlib.suppress(OSError), self._sending:
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Json]:
        """Return the next message; OSError or EOFError where none will come."""
        line = self.lines.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise EOFError
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("not an object")
        return message

    def close(self) -> None:
        """Close the connection."""
        self.lines.close()
        self.connection.close()


def listen(address: str, deadline: float = 0.0) -> socket.socket:
    """Listen at an address, on the interface it names and on no other.

    A name that is not known yet, as that of a pod just made, is asked for until the deadline.
    """
    host, _, port = address.rpartition(":")
    try:
        while True:
            try:
                found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
                break
            except socket.gaierror:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)
        family, *_, where = found[0]
        return socket.create_server(where, family=family, backlog=1024)
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen at distributed.coordinator {address} ({error}); name this "
            "machine as the others reach it, and a port that is free."
        ) from error


def free_port(host: str) -> int:
    """Return a port of this machine that nobody listens at."""
    with listen(f"{host}:0") as server:
        return int(server.getsockname()[1])
