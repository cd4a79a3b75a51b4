"""How the processes of a run find each other, and what those who disturb them can do.

Each process is a thread here, except where one is killed.
"""

import contextlib
import json
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlstm_jax.config import Distributed
from mlstm_jax.config.sections import parse_address
from mlstm_jax.distributed import cluster, rendezvous
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.distributed.connection import Connection
from mlstm_jax.distributed.rendezvous import Greeting, RendezvousServer, find_first, prove
from mlstm_jax.errors import UserError

# Far beyond what any of this takes: a test that fails does not wait for ever.
PATIENCE = 60.0


class Process(threading.Thread):
    """One process that waits for the others."""

    def __init__(self, at: str, index: int, processes: int, seconds: float, secret: str) -> None:
        super().__init__(daemon=True)
        self.address, self.index, self.processes, self.seconds = at, index, processes, seconds
        self.secret = secret
        self.said: queue.Queue[str] = queue.Queue()
        self.connections: dict[int, Connection] = {}
        self.error = ""

    def run(self) -> None:
        address = parse_address(self.address)
        try:
            if self.index == 0:
                say = self.said.put
                server = RendezvousServer(address, "node0", self.processes, self.seconds, say)
                self.connections = server.wait()
            else:
                greeting = Greeting(self.index, self.processes, f"node{self.index}")
                self.connections[0], _ = find_first(address, greeting, self.seconds)
        except UserError as error:
            self.error = str(error)


Start = Callable[..., Process]


def free_address(host: str = "127.0.0.1", family: int = socket.AF_INET) -> str:
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@pytest.fixture
def address() -> str:
    return free_address()


@pytest.fixture
def start(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    started: list[Process] = []
    own = rendezvous._key

    def key() -> bytes:
        this = threading.current_thread()
        return this.secret.strip().encode() if isinstance(this, Process) else own()

    monkeypatch.setattr(rendezvous, "_key", key)

    def start_one(
        n: int, count: int = 2, seconds: float = PATIENCE, at: str = address, secret: str = ""
    ) -> Process:
        started.append(Process(at, n, count, seconds, secret))
        started[-1].start()
        return started[-1]

    yield start_one
    for process in started:
        for connection in process.connections.values():
            connection.close()


def end(*processes: Process) -> list[str]:
    """Wait for all to end; return the error of each."""
    for process in processes:
        process.join(PATIENCE)
        assert not process.is_alive()
    return [process.error for process in processes]


def assert_met(*processes: Process) -> None:
    assert end(*processes) == [""] * len(processes)
    assert sorted(processes[0].connections) == list(range(1, len(processes)))


def connect(address: str, seconds: float = PATIENCE) -> socket.socket:
    """Connect to process 0, as soon as it listens."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=PATIENCE)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def read_until(peer: socket.socket, words: bytes) -> None:
    """Read until the other end has sent these words, or closes the connection."""
    said = b""
    while words not in said and (more := peer.recv(1000)):
        said += more


def greeting(client: socket.socket, **fields: object) -> bytes:
    """Read the random number of process 0; return a greeting with these fields, and its proof."""
    nonce = json.loads(client.recv(1000))["nonce"]
    said: dict[str, Any] = {"index": 1, "processes": 2, "host": "node2", "nonce": "0"} | fields
    proof = said.pop("proof", None) or prove("other", nonce, Greeting(**said))
    return json.dumps(said | {"proof": proof}).encode() + b"\n"


# --- who does not come, or comes twice


@pytest.mark.parametrize(
    ("processes", "messages"),
    [
        (
            [(0, 3, 1), (2, 3)],
            ["process 1 of 3 did not connect within 1 s", "listens only at 127.0.0.1, which "],
        ),
        (
            [(1, 2, 0.5)],
            ["process 0 did not answer at 127.0.0.1:.* within 0.5 s", "127.0.0.1 is this machine"],
        ),
        ([(0, 3), (1, 3), (1, 3)], ["has the index 1. Start"]),
        ([(0, 2), (1, 3)], ["was started for 3 processes, but process 0 for 2"]),
    ],
)
def test_who_is_missing_or_comes_twice_is_named_by_all(processes, messages, start) -> None:
    for text in end(*(start(*one) for one in processes)):
        for message in messages:
            assert re.search(message, text)


def test_a_process_that_dies_while_it_waits_may_come_back(start: Start, address: str) -> None:
    first = start(0, 3)
    lost = connect(address)
    lost.sendall(greeting(lost, processes=3))
    read_until(lost, b"proof")
    # By a reset, as of a machine that has started again; the second time by an end.
    lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    lost.close()
    assert "process 1 (node2) is gone; waiting" in first.said.get(timeout=PATIENCE)
    lost = connect(address)
    lost.sendall(greeting(lost, processes=3))
    lost.close()
    assert_met(first, start(1, 3), start(2, 3))


def test_a_process_that_is_killed_last_is_waited_for(start, address, monkeypatch):
    """All have been there, but not at one time: the greeting and the end are read together."""
    closed, take = threading.Event(), Connection.take
    monkeypatch.setattr(
        Connection, "take", lambda self, size: closed.wait(PATIENCE) and take(self, size)
    )
    first = start(0)
    with connect(address) as lost:
        lost.sendall(greeting(lost))
    closed.set()
    assert_met(first, start(1))


# --- who disturbs the wait


STRANGE: list[bytes | dict[str, object]] = [
    b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n", b"\n", b"null\n", b"\xff\xfe\n", b'{"index": 1}\n',
    b'{"index": Infinity, "processes": 2, "host": "a"}\n',
    b'{"index": NaN, "processes": 2, "host": "a"}\n',
    b"[" * 200_000 + b"\n", b"[" * 3_000 + b"\n", b"1" * 5_000 + b"\n",
    b"{" + b" " * (2 << 20) + b"}\n",
    {"index": True}, {"index": 1.0}, {"index": "1"}, {"index": None}, {"index": -1}, {"index": 0},
    {"index": 10**30}, {"index": 2}, {"processes": [2]}, {"processes": 10**4000}, {"host": None},
    {"host": "a" * 256}, {"nonce": 5},
]  # fmt: skip


def test_strangers_are_disconnected_and_delay_nobody(start: Start, address: str) -> None:
    first = start(0)
    for line in STRANGE:
        with connect(address) as stranger, contextlib.suppress(ConnectionError):
            if isinstance(line, dict):
                stranger.sendall(greeting(stranger, **line))
            else:
                assert b"nonce" in stranger.recv(100)
                stranger.sendall(line)
            assert stranger.recv(100) == b"", line
    with connect(address) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(greeting(stranger) + b"and more\n")
        assert stranger.recv(100) == b""
    assert_met(first, start(1))


@pytest.mark.parametrize("count", [20, 600])
def test_silent_clients_delay_nobody(count, start, address, monkeypatch):
    """The processes meet long before the clients have to greet; with many, the oldest lose."""
    monkeypatch.setattr(rendezvous, "_GREETING_SECONDS", 100 * PATIENCE)
    first = start(0)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connect(address))
        assert_met(first, start(1))


def test_one_that_drips_cannot_hold_the_start_beyond_its_time(start, address, monkeypatch):
    monkeypatch.setattr(rendezvous, "_GREETING_SECONDS", 100 * PATIENCE)
    first = start(0, seconds=1)
    with connect(address) as client, contextlib.suppress(OSError):
        for _ in range(int(PATIENCE / 0.1)):
            if not first.is_alive():
                break
            client.sendall(b" ")
            time.sleep(0.1)
    (text,) = end(first)
    assert "process 1 of 2 did not connect within 1 s" in text


STOP = b'{"nonce": "0"}\n{"proof": "PROOF"}\n{"stop": "go away", "source": "a", "code": 0}\n'


@pytest.mark.parametrize(
    ("secret", "answers", "message"),
    [
        (
            "",
            [
                *(b"SSH-2.0-OpenSSH_9.6\r\n", b'{"nonce": "0"}\n{"value": 3}\n'),
                *(b'{"nonce": "0"}\n{"stop": 1}\n', b'{"nonce": 0}\n', b"[" * 200_000 + b"\n"),
            ],
            "process 0 did not answer at",
        ),
        # Whatever exit code it sends; and without the secret, nothing that it sends counts.
        ("", [STOP], "go away"),
        ("our own", [STOP], "process 0 did not answer at"),
    ],
)
def test_what_is_not_process_0_cannot_end_a_start_with_success(secret, answers, message, start):
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(served(answer)) for answer in answers]
        for text in end(*(start(1, seconds=0.5, at=at, secret=secret) for at in places)):
            assert message in text


@contextlib.contextmanager
def served(answer: bytes) -> Iterator[str]:
    """The address of a server that answers so to everybody; in it, PROOF is that of process 0."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        first, *rest = answer.split(b"PROOF")
                        connection.sendall(first)
                        said = json.loads(connection.recv(1000) or b"{}")
                        if rest:
                            del said["proof"]
                            proof = prove("process 0", "0", Greeting(**said))
                            connection.sendall(proof.encode().join([b"", *rest]))
                            connection.recv(1000)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


# --- who has another secret


@pytest.mark.parametrize(
    "fields", [{}, {"processes": 3}, {"proof": [1]}, {"proof": "\ud800"}, {"proof": "é" * 64}]
)
def test_a_stranger_without_the_secret_cannot_end_a_start(start, address, fields):
    first = start(0, secret="our own")
    with connect(address) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(greeting(stranger, **fields))
        assert stranger.recv(100) == b""
    assert_met(first, start(1, secret="our own\n"))


def test_a_proof_is_of_one_connection_only(start, address, monkeypatch):
    monkeypatch.setenv("MLSTM_JAX_SECRET", "our own")
    first = start(0, 3, secret="our own")
    with connect(address) as client, connect(address) as stranger:
        line = greeting(client, processes=3)
        stranger.sendall(line)
        with contextlib.suppress(ConnectionError):
            assert b"proof" not in stranger.recv(1000)
        client.sendall(line)
        assert b"proof" in client.recv(1000)
    assert_met(first, *(start(index, 3, secret="our own") for index in (1, 2)))


def test_another_secret_is_named_by_both(start: Start) -> None:
    pairs = []
    for secrets in (("one", "two"), ("one", ""), ("", "two")):
        at = free_address()
        pairs.append([start(n, seconds=1, at=at, secret=secrets[n]) for n in (0, 1)])
    for first, second in (end(*pair) for pair in pairs):
        assert re.search("[0-9]+ greetings with another MLSTM_JAX_SECRET .* from 127.0.0.1", first)
        assert "both need the same MLSTM_JAX_SECRET" in second


# --- who disturbs the run


@pytest.fixture
def run_first(address: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Run process 0 of several; it returns how it ends, as its exit code and what it said."""
    said: list[str] = []
    ended: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(Cluster, "_say", lambda self, text: said.append(text))
    monkeypatch.setattr(cluster, "_exit", ended.put)

    def start_one(processes: int) -> Any:
        def run() -> None:
            with Cluster(Distributed(coordinator=address, processes=processes, index=0)) as here:
                here.gather(0)

        threading.Thread(target=run, daemon=True).start()
        return lambda: (ended.get(timeout=PATIENCE), said[-1])

    return start_one


@pytest.mark.parametrize(
    "line",
    [
        *(b"no JSON", b"3", b"[" * 200_000, b"{}", b'{"stop": 1}', b" " * (17 << 20)),
        b'{"stop": "a", "source": 2, "code": 1}',
        *(
            b'{"stop": "a", "source": "b", "code": %s}' % code
            for code in (b'"c"', b"1e999", b"1000")
        ),
    ],
)
def test_nonsense_in_a_run_ends_it_with_a_name(run_first, address, line):
    ending = run_first(2)
    with connect(address) as peer:
        peer.sendall(greeting(peer))
        read_until(peer, b"all are here")
        with contextlib.suppress(OSError):
            peer.sendall(line + b"\n")
            read_until(peer, b'"stop"')
    code, text = ending()
    assert "process 1 (node2) sent something that is not a message of this run" in text
    assert code == 1


def test_values_that_nobody_asked_for_end_a_run(run_first, address):
    """Each value is taken before the next; more would fill the memory."""
    ending = run_first(3)
    with connect(address) as one, connect(address) as two:
        one.sendall(greeting(one, processes=3))
        two.sendall(greeting(two, index=2, processes=3))
        read_until(two, b"all are here")
        two.sendall(b'{"value": 2}\n' * 2)
        read_until(two, b'"stop"')
    assert "process 2 (node2) sent something that is not a message of this run" in ending()[1]


def test_a_killed_process_is_named_in_a_run(address, command_environment):
    command = [sys.executable, "-m", "tests.distributed.meeting", address, "2"]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    first, second = (
        subprocess.Popen([*command, str(n), "60", "600"], env=command_environment, **pipe)
        for n in (0, 1)
    )
    try:
        assert first.stdout
        assert "met [0, 1]" in first.stdout.readline()
        second.kill()
        text = first.communicate(timeout=PATIENCE)[0]
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert re.search(r"process 1 \(.*\) is gone: it was killed", text)
    assert first.returncode == 1


# --- over IPv6


@pytest.mark.skipif(not socket.has_ipv6, reason="Python was built without IPv6")
def test_processes_meet_over_ipv6(start: Start) -> None:
    try:
        at = free_address("::1", socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert_met(*(start(index, at=at) for index in (0, 1)))
