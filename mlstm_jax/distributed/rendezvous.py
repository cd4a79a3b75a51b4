"""How the processes of a run find each other: process 0 waits, the others connect to it.

Each client has a few seconds to greet, and all are handled concurrently, so a silent or unknown
client does not delay the others. A process that dies while it waits may come back: its new
connection replaces the old one.
"""

import errno
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from mlstm_jax.address import Address, is_loopback
from mlstm_jax.distributed import listener
from mlstm_jax.distributed.connection import Connection, Json, Stop
from mlstm_jax.errors import KnownError, UserError

_WELCOME = "all are here"
_GREETING_SECONDS = 10.0
_LONGEST_GREETING = 4096
_LONGEST_HOST = 255  # the limit of DNS
# Connections at one time that have not greeted; one more disconnects the oldest.
_MOST_PENDING = 256


@dataclass(frozen=True)
class Greeting:
    """The first message of a process."""

    index: int
    processes: int
    host: str


def read_greeting(message: dict[str, Json]) -> Greeting:
    """Return the greeting in a message; raise ValueError if no process of a run sends it."""
    index, processes, host = (message.get(name) for name in ("index", "processes", "host"))
    # isinstance would accept True.
    if not (type(index) is int and type(processes) is int and 0 < index < processes < 1 << 31):
        raise ValueError("not the numbers of a process")
    if not (isinstance(host, str) and len(host) <= _LONGEST_HOST):
        raise ValueError("not the name of a host")
    return Greeting(index, processes, host)


class RendezvousServer:
    """Where process 0 waits for the others.

    Args:
        address: the coordinator's.
        host: this machine's name.
        processes: number of processes, including process 0.
        seconds: how long to wait in total.
        say: prints a message for the user.
    """

    def __init__(
        self,
        address: Address,
        host: str,
        processes: int,
        seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._address, self._host, self._processes = address, host, processes
        self._seconds, self._say = seconds, say
        self._connections: dict[int, Connection] = {}
        self._pending: dict[Connection, float] = {}  # not yet greeted, and their deadlines
        self._selector = selectors.DefaultSelector()
        self._note = ""

    def wait(self) -> dict[int, Connection]:
        """Return the others by their index, once all are connected at the same time.

        Raises UserError, and sends it to the connected processes, if one is missing after the time
        limit, an index is used twice, or a process was given another number of processes.
        """
        deadline = time.monotonic() + self._seconds
        try:
            with self._selector, ExitStack() as stack:
                servers = listener.listen(self._address, deadline)
                for server in servers:
                    stack.enter_context(server).setblocking(False)
                    self._selector.register(server, selectors.EVENT_READ)
                hosts = [server.getsockname()[0] for server in servers]
                self._note = listener.note(self._address.host, hosts)
                self._meet(deadline)
        except UserError as error:
            for connection in self._connections.values():
                connection.send(**Stop(str(error), "process 0", error.exit_code).message())
                connection.close()
            raise
        finally:
            for client in self._pending:
                client.close()
        for connection in self._connections.values():
            connection.send(value=_WELCOME)
        return self._connections

    def _meet(self, deadline: float) -> None:
        told, note = time.monotonic(), f"; {self._note}" if self._note else ""
        while not self._all_are_here():
            now = time.monotonic()
            if now > deadline:
                raise UserError(self._missing())
            if now - told > 10:
                self._say(f"waiting for {self._absent()}, {deadline - now:.0f} s left{note}")
                told, note = now, ""
            for key, _ in self._selector.select(min(deadline - now, 1.0)):
                connection = key.data
                if connection is None:
                    self._accept(key.fileobj)  # type: ignore[arg-type]
                elif connection in self._pending:
                    self._handle_greeting(connection)
                elif connection in self._connections.values():
                    # A process sends nothing before the welcome, so this one is gone or unknown.
                    self._lose(connection)
            for client in [one for one, until in self._pending.items() if until < now]:
                self._disconnect(client)

    def _all_are_here(self) -> bool:
        if len(self._connections) < self._processes - 1:
            return False
        gone = [
            connection for connection in self._connections.values() if not connection.is_silent()
        ]
        for connection in gone:
            self._lose(connection)
        return not gone

    def _accept(self, server: socket.socket) -> None:
        try:
            sock, _ = server.accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return  # The client is gone, or the network had an error that will recur.
            if not self._pending:
                raise UserError(
                    f"process 0 cannot accept more than {len(self._connections)} connections "
                    f"({error}); raise its limit of open files with `ulimit -n`."
                ) from error
            self._disconnect(next(iter(self._pending)))
            return
        if len(self._pending) == _MOST_PENDING:
            self._disconnect(next(iter(self._pending)))
        sock.setblocking(False)
        client = Connection(sock, -1, "")
        self._pending[client] = time.monotonic() + _GREETING_SECONDS
        self._selector.register(sock, selectors.EVENT_READ, client)

    def _handle_greeting(self, client: Connection) -> None:
        """Accept a client that has greeted as a process of this run."""
        try:
            message = client.take(_LONGEST_GREETING)
            if message is None:
                return
            greeting = read_greeting(message)
            if not client.is_silent():
                raise ValueError("it did not wait for the welcome")
        except (OSError, EOFError, ValueError):
            self._disconnect(client)
            return
        del self._pending[client]
        client.index, client.host = greeting.index, greeting.host
        before, why = self._connections.get(client.index), None
        if greeting.processes != self._processes:
            why = (
                f"{client} was started for {greeting.processes} processes, but process 0 for "
                f"{self._processes}"
            )
        elif before and before.is_silent():
            why = f"a second process, on {client.host}, has the index {client.index}"
        if why:
            error = UserError(
                f"{why}. Start every process with its own --distributed.index and the same "
                "--distributed.processes."
            )
            client.send(**Stop(str(error), "process 0", error.exit_code).message())
            client.close()
            raise error
        if before:
            self._lose(before)
        self._connections[client.index] = client

    def _disconnect(self, client: Connection) -> None:
        del self._pending[client]
        self._selector.unregister(client.sock)
        client.close()

    def _lose(self, connection: Connection) -> None:
        self._say(f"{connection} is gone; waiting for it to come back")
        del self._connections[connection.index]
        self._selector.unregister(connection.sock)
        connection.close()

    def _absent(self) -> str:
        absent = [n for n in range(1, self._processes) if n not in self._connections]
        return f"process{'es' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"

    def _missing(self) -> str:
        here = {0: self._host} | {
            connection.index: connection.host for connection in self._connections.values()
        }
        present = ", ".join(f"{index} ({host})" for index, host in sorted(here.items()))
        return (
            f"{self._absent()} of {self._processes} did not connect within {self._seconds:g} s; "
            f"connected: {present}. See the logs of the missing processes: they must reach "
            f"{self._address} and have the same --distributed.processes. To wait longer, set "
            f"--distributed.timeout-seconds.{f' ({self._note}.)' if self._note else ''}"
        )


def reached_at(connections: Iterable[Connection]) -> str:
    """Return the numeric host of this machine at which the others have reached it.

    All of them can reach a host that is not loopback.
    """
    hosts = [listener.numeric_host(connection.sock.getsockname()) for connection in connections]
    return max(hosts, key=lambda host: (not is_loopback(host), hosts.count(host)))


def find_first(address: Address, greeting: Greeting, seconds: float) -> tuple[Connection, str]:
    """Connect to process 0, and wait until all processes have connected to it.

    Returns:
        The connection, and the numeric host at which process 0 was reached.

    Raises:
        UserError: process 0 did not answer within `seconds`.
        KnownError: process 0 has ended the start; the error has its message and exit code.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            sock = socket.create_connection(address, timeout=5.0)
            with ExitStack() as stack:
                stack.callback(sock.close)
                connection = Connection(sock, 0, address.host)
                host = listener.numeric_host(sock.getpeername())
                connection.send(**asdict(greeting))
                # Process 0 waits as long for the others.
                first = connection.receive(seconds + 30)
                if "stop" in first:
                    raise _refusal(Stop.read(first))
                if first.get("value") != _WELCOME:
                    raise ValueError("another program answers there")
                stack.pop_all()
                return connection, host
        except KnownError:
            raise
        except (OSError, EOFError, ValueError) as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"process 0 did not answer at {address} within {seconds:g} s "
                    f"({error or type(error).__name__}). Check that it has started, that this is "
                    f"its address, and that no firewall blocks the port.{_hint(address.host)}"
                ) from error
            time.sleep(0.2)


def _hint(host: str) -> str:
    """Return a hint if the coordinator's name resolves to this machine itself, else ""."""
    found = listener.loopback_of(host)
    if not found:
        return ""
    name = f"{host} is" if host == found else f"{host} resolves to {found} here, which is"
    return f" {name} this machine itself, so process 0 would have to run on it, too."


def _refusal(stop: Stop) -> KnownError:
    error = KnownError(stop.text)
    error.exit_code = stop.code
    return error
