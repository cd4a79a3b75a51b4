"""Where process 0 listens, and a connection between two processes: lines of JSON over TCP.

Process 0 listens at the addresses to which the coordinator's name resolves. Debian maps a machine's
own name to 127.0.1.1 in /etc/hosts, so the name resolves differently on that machine than
everywhere else. If a name other than localhost resolves to loopback, process 0 also listens at the
machine's outward address.
"""

import contextlib
import errno
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from mlstm_jax.config.sections import Address, ip_version, is_loopback
from mlstm_jax.errors import KnownError, UserError

# In bytes; enough to gather the values of about 5,000 processes in one message.
LONGEST = 16 << 20
_LONGEST_TEXT = 10_000

Json = Any

# Documentation addresses (RFC 5737 and 3849): no machine has them, so the default route is used.
_FAR = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
# A name may resolve to addresses that this machine does not have.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

Where = tuple[int, Any]  # the family of an address, and the address in the family's format


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


def listen(address: Address, deadline: float = 0.0) -> list[socket.socket]:
    """Listen at every address of this machine to which the coordinator's name resolves.

    A name that does not resolve yet, such as that of a new pod, is tried again until the deadline.

    Raises UserError if none of the addresses belongs to this machine, or the port is in use.
    """
    sockets: list[socket.socket] = []
    try:
        resolved = _resolve(address, 0.0 if ip_version(address.host) else deadline)
        if _is_hidden(address.host, [where[0] for _, where in resolved]):
            resolved += _outward(address.port)
        problem: OSError | None = None
        for family, where in resolved:
            try:
                sockets.append(socket.create_server(where, family=family, backlog=1024))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                problem = error
        if problem and not sockets:
            raise problem
    except OSError as error:
        for server in sockets:
            server.close()
        raise UserError(
            f"process 0 cannot listen at distributed.coordinator {address} ({error}); set it to an "
            "address at which the others reach this machine, and a free port."
        ) from error
    return sockets


def reach_note(host: str, hosts: list[str]) -> str:
    """Describe what may keep others from reaching process 0, which listens at numeric `hosts`."""
    here = " and ".join(filter(is_loopback, hosts))
    beyond = " and ".join(each for each in hosts if not is_loopback(each))
    if not here:
        return ""
    if not beyond:
        return (
            f"process 0 listens only at {here}, which processes on other machines cannot reach; "
            "if there are any, set distributed.coordinator to an address that they can reach"
        )
    return (
        f"{host} resolves to {here} on the machine of process 0, so process 0 also listens at "
        f"{beyond}; if the others reach that machine at another address, set "
        "distributed.coordinator to it"
    )


def loopback_of(host: str) -> str:
    """Return the loopback address to which a name resolves here; "" if it has another or none."""
    try:
        resolved = [where[0] for _, where in _resolve(Address(host, 1))]
    except OSError:
        return ""
    return resolved[0] if all(map(is_loopback, resolved)) else ""


def numeric_host(where: Any) -> str:
    """Return the host of a socket's address, with the zone of a link-local one."""
    return socket.getnameinfo(where, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]


def free_port(host: str) -> int:
    """Return a free port of a numeric host of this machine."""
    ((family, where), *_) = _resolve(Address(host, 0))
    with socket.create_server(where, family=family) as server:
        return int(server.getsockname()[1])


def _resolve(address: Address, deadline: float = 0.0) -> list[Where]:
    while True:
        try:
            resolved = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
            return list(dict.fromkeys((family, where) for family, *_, where in resolved))
        except socket.gaierror:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _is_hidden(host: str, resolved: list[str]) -> bool:
    """Whether a name resolves only to loopback here, although the name does not suggest it."""
    meant = ip_version(host) or "localhost" in host.lower() or "loopback" in host.lower()
    return not meant and all(map(is_loopback, resolved))


def _outward(port: int) -> Iterator[Where]:
    """Yield this machine's addresses on its default routes; nothing is sent."""
    for family, far in _FAR.items():
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                here = probe.getsockname()
        except OSError:
            continue  # There is no default route of this family.
        if not is_loopback(here[0]):
            yield family, (here[0], port, *here[2:])
