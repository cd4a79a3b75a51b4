"""How the processes of a run find each other: process 0 waits, the others connect to it.

Each client has a few seconds to greet, and all are handled concurrently, so a silent or unknown
client does not delay the others. A process that dies while it waits may come back: its new
connection replaces the old one.

Both ends prove that they know the run's secret, which they do not send: each proof is an HMAC of
the greeting and of random numbers of both. Without a secret, its key is empty.

    process 0:   {"nonce"}
    the other:   {"index", "processes", "host", "nonce", "proof"}
    process 0:   {"proof"}, and then {"value": "all are here"} or the reason to stop
"""

import errno
import hmac
import json
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from mlstm_jax.config.sections import Address, is_loopback
from mlstm_jax.distributed.connection import (
    Connection,
    Json,
    Stop,
    listen,
    loopback_of,
    numeric_host,
    reach_note,
)
from mlstm_jax.errors import UserError

# The environment variable that has the secret, the same for all processes of a run.
_SECRET = "MLSTM_JAX_SECRET"
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
    nonce: str = ""  # a random number, which each attempt draws


def read_greeting(message: dict[str, Json]) -> Greeting:
    """Return the greeting in a message; raise ValueError if no process of a run sends it."""
    index, processes, host, nonce = map(message.get, ("index", "processes", "host", "nonce"))
    # isinstance would accept True.
    if not (type(index) is int and type(processes) is int and 0 < index < processes < 1 << 31):
        raise ValueError("not the numbers of a process")
    if not (isinstance(host, str) and len(host) <= _LONGEST_HOST):
        raise ValueError("not the name of a host")
    if not isinstance(nonce, str):
        raise ValueError("not a nonce")
    return Greeting(index, processes, host, nonce)


def prove(sender: str, nonce: str, greeting: Greeting) -> str:
    """Return what only a process that knows the secret can send.

    Args:
        sender: "process 0" or "other", so that no proof can be sent back as one's own.
        nonce: the random number of process 0.
        greeting: with the random number of the other process.
    """
    text = json.dumps([sender, nonce, asdict(greeting)])
    return hmac.new(_key(), text.encode(), "sha256").hexdigest()


def _key() -> bytes:
    return os.environ.get(_SECRET, "").strip().encode("utf-8", "surrogateescape")


def _is_proof(value: Json, expected: str) -> bool:
    """Compare in a time that does not depend on the values."""
    given = value if isinstance(value, str) else ""
    return hmac.compare_digest(given.encode("ascii", "replace"), expected.encode())


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
        # Not yet greeted: their deadlines, and the random numbers that they were sent.
        self._pending: dict[Connection, tuple[float, str]] = {}
        self._ignored = ""  # describes greetings with another secret
        self._ignored_count = 0
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
                servers = listen(self._address, deadline)
                for server in servers:
                    stack.enter_context(server).setblocking(False)
                    self._selector.register(server, selectors.EVENT_READ)
                hosts = [server.getsockname()[0] for server in servers]
                self._note = reach_note(self._address.host, hosts)
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
                left = f"{deadline - now:.0f} s left"
                self._say(f"waiting for {self._absent()}, {left}{self._ignored}{note}")
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
            for client in [client for client, (until, _) in self._pending.items() if until < now]:
                self._disconnect(client)

    def _all_are_here(self) -> bool:
        if len(self._connections) < self._processes - 1:
            return False
        gone = [each for each in self._connections.values() if not each.is_silent()]
        for connection in gone:
            self._lose(connection)
        return not gone

    def _accept(self, server: socket.socket) -> None:
        try:
            sock, where = server.accept()
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
        client, nonce = Connection(sock, -1, numeric_host(where)), secrets.token_hex(16)
        client.send(nonce=nonce)
        self._pending[client] = (time.monotonic() + _GREETING_SECONDS, nonce)
        self._selector.register(sock, selectors.EVENT_READ, client)

    def _handle_greeting(self, client: Connection) -> None:
        """Accept a client that has greeted as a process of this run."""
        _, nonce = self._pending[client]
        try:
            message = client.take(_LONGEST_GREETING)
            if message is None:
                return
            greeting = read_greeting(message)
            if not client.is_silent():
                raise ValueError("it did not wait for the welcome")
            if not _is_proof(message.get("proof"), prove("other", nonce, greeting)):
                self._ignored_count += 1
                self._ignored = (
                    f"; {self._ignored_count} greetings with another {_SECRET} were ignored, the "
                    f"last from {client.host} as process {greeting.index}"
                )
                raise ValueError("it has another secret")
        except (OSError, EOFError, ValueError):
            self._disconnect(client)
            return
        client.send(proof=prove("process 0", nonce, greeting))
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
                f"{why}. Start every process with its own `distributed.index` and the same "
                "`distributed.processes`."
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
        others = sorted((each.index, each.host) for each in self._connections.values())
        present = ", ".join(f"{index} ({host})" for index, host in [(0, self._host), *others])
        return (
            f"{self._absent()} of {self._processes} did not connect within {self._seconds:g} s; "
            f"connected: {present}{self._ignored}. See the logs of the missing processes: "
            f"they must reach {self._address} and have the same `distributed.processes`. To wait "
            f"longer, set `distributed.timeout_seconds`.{f' ({self._note}.)' if self._note else ''}"
        )


def reached_at(connections: Iterable[Connection]) -> str:
    """Return the numeric host of this machine at which the others have reached it.

    All of them can reach a host that is not loopback.
    """
    hosts = [numeric_host(connection.sock.getsockname()) for connection in connections]
    return max(hosts, key=lambda host: (not is_loopback(host), hosts.count(host)))


def find_first(address: Address, greeting: Greeting, seconds: float) -> tuple[Connection, str]:
    """Connect to process 0, and wait until all processes have connected to it.

    Returns:
        The connection, and the numeric host at which process 0 was reached.

    Raises UserError if process 0 did not answer within `seconds`, or has ended the start.
    """
    deadline, why = time.monotonic() + seconds, None
    while True:
        try:
            sock = socket.create_connection(address, timeout=5.0)
            with ExitStack() as stack:
                stack.callback(sock.close)
                connection = Connection(sock, 0, address.host)
                host = numeric_host(sock.getpeername())
                _greet(connection, greeting)
                # Process 0 waits as long for the others.
                message = connection.receive(seconds + 30)
                if "stop" in message:
                    raise UserError(Stop.read(message).text)
                if message.get("value") != _WELCOME:
                    raise ValueError("another program answers there")
                stack.pop_all()
                return connection, host
        except UserError:
            raise
        except (OSError, EOFError, ValueError) as error:
            # What has answered says more than that nothing answers any more.
            why = error if isinstance(error, ValueError) else why or error
            if time.monotonic() > deadline:
                raise UserError(
                    f"process 0 did not answer at {address} within {seconds:g} s "
                    f"({str(why) or type(why).__name__}). Check that it has started, that this is "
                    f"its address, and that no firewall blocks the port.{_hint(address.host)}"
                ) from error
            time.sleep(0.2)


def _greet(connection: Connection, greeting: Greeting) -> None:
    """Greet process 0; raise ValueError if it is another program or has another secret."""
    nonce = connection.receive(_GREETING_SECONDS).get("nonce")
    if not isinstance(nonce, str):
        raise ValueError("another program answers there")
    greeting = replace(greeting, nonce=secrets.token_hex(16))
    connection.send(**asdict(greeting), proof=prove("other", nonce, greeting))
    try:
        proof = connection.receive(_GREETING_SECONDS).get("proof")
    except EOFError:
        proof = None
    if not _is_proof(proof, prove("process 0", nonce, greeting)):
        raise ValueError(f"it does not accept this process; both need the same {_SECRET}")


def _hint(host: str) -> str:
    """Return a hint if the coordinator's name resolves to this machine itself, else ""."""
    loopback = loopback_of(host)
    if not loopback:
        return ""
    name = f"{host} is" if host == loopback else f"{host} resolves to {loopback} here, which is"
    return f" {name} this machine itself, so process 0 would have to run on it, too."
