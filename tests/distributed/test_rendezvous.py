"""How processes find each other, and what those who disturb them can do: real ones, without JAX."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlstm_jax.distributed.rendezvous import Greeting, prove

Process = subprocess.Popen[bytes]
Start = Callable[..., Process]


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def start(address: str, command_environment: dict[str, str]) -> Iterator[Start]:
    """Start one of several processes; none outlives the test."""
    started: list[Process] = []

    def start_one(
        index: int,
        processes: int = 2,
        seconds: float = 20,
        hold: float = 0,
        at: str = address,
        secret: str = "",
    ) -> Process:
        words = [at, str(processes), str(index), str(seconds), str(hold)]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.distributed.meeting", *words],
                env=command_environment | {"MLSTM_JAX_SECRET": secret},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        if process.stdout and not process.stdout.closed:
            process.communicate()


def end(*processes: Process) -> list[str]:
    """Wait for all to end; return what each has written."""
    return [process.communicate(timeout=30)[0].decode() for process in processes]


def assert_met(*processes: Process) -> list[str]:
    texts = end(*processes)
    assert [process.returncode for process in processes] == [0] * len(processes), texts
    for text in texts:
        assert f"met {list(range(len(processes)))}" in text
    return texts


def wait_for(process: Process, words: str) -> str:
    """Read what a process writes until it has written these words."""
    text = ""
    assert process.stdout
    for line in process.stdout:
        text += line.decode()
        if words in text:
            return text
    raise AssertionError(text)


def connect(address: str, seconds: float = 10) -> socket.socket:
    """Connect to process 0, as soon as it listens."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=10)
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


def test_a_missing_process_is_named(start: Start) -> None:
    processes = [start(index, 3, seconds=1) for index in (0, 2)]
    for text in end(*processes):
        assert "process 1 of 3 did not connect within 1 s" in text
        assert "listens only at 127.0.0.1, which processes on other machines cannot" in text
    assert [process.returncode for process in processes] == [2, 2]


def test_a_missing_first_process_is_named(start: Start, address: str) -> None:
    process = start(1, seconds=0.5)
    (text,) = end(process)
    assert f"process 0 did not answer at {address} within 0.5 s" in text
    assert "127.0.0.1 is this machine itself, so process 0 would have to run on it" in text
    assert process.returncode == 2


def test_two_of_one_number_are_refused(start: Start) -> None:
    processes = [start(index, 3) for index in (0, 1, 1)]
    for text in end(*processes):
        assert "has the index 1. Start" in text
    assert [process.returncode for process in processes] == [2, 2, 2]


def test_another_number_of_processes_is_refused(start: Start) -> None:
    processes = [start(0, 2), start(1, 3)]
    for text in end(*processes):
        assert "was started for 3 processes, but process 0 for 2" in text
    assert [process.returncode for process in processes] == [2, 2]


def test_a_process_that_dies_while_it_waits_may_come_back(start: Start, address: str) -> None:
    first = start(0, 3)
    lost = connect(address)
    lost.sendall(greeting(lost, processes=3))
    # By a reset, as of a machine that has started again; the second time by an end.
    lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    time.sleep(0.2)
    lost.close()
    wait_for(first, "process 1 (node2) is gone; waiting")
    lost = connect(address)
    lost.sendall(greeting(lost, processes=3))
    lost.close()
    assert_met(first, start(1, 3), start(2, 3))


def test_a_process_that_is_killed_last_is_waited_for(start: Start, address: str) -> None:
    """All have been there, but not at one time."""
    first = start(0, 2)
    with connect(address) as lost:
        line = greeting(lost)
        # It hears the greeting and the end at one time.
        first.send_signal(signal.SIGSTOP)
        lost.sendall(line)
    first.send_signal(signal.SIGCONT)
    assert_met(first, start(1, 2))


# --- who disturbs the wait


STRANGE: list[bytes | dict[str, object]] = [
    b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n",
    b"\n",
    b"null\n",
    b'{"index": Infinity, "processes": 2, "host": "a"}\n',
    b'{"index": NaN, "processes": 2, "host": "a"}\n',
    b"[" * 200_000 + b"\n",
    b"[" * 3_000 + b"\n",
    b"1" * 5_000 + b"\n",
    b"\xff\xfe\n",
    b"{" + b" " * (2 << 20) + b"}\n",
    {"index": True},
    {"index": 1.0},
    {"index": "1"},
    {"index": None},
    {"index": -1},
    {"index": 0},
    {"index": 10**30},
    {"index": 2},
    {"processes": [2]},
    {"processes": 10**4000},
    {"host": None},
    {"host": "a" * 256},
    b'{"index": 1}\n',
    {"nonce": 5},
]


def test_strangers_are_sent_away_and_delay_nobody(start: Start, address: str) -> None:
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
    texts = assert_met(first, start(1))
    assert "Traceback" not in texts[0]


def test_silent_ones_delay_nobody(start: Start, address: str) -> None:
    first = start(0)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connect(address))
        began = time.monotonic()
        assert_met(first, start(1))
    assert time.monotonic() - began < 4


def test_a_flood_of_connections_delays_nobody(start: Start, address: str) -> None:
    first = start(0)
    with contextlib.ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(connect(address))
        assert_met(first, start(1))


def test_one_that_drips_cannot_hold_the_start_beyond_its_time(start: Start, address: str) -> None:
    first = start(0, seconds=2)
    with connect(address) as client:
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while first.poll() is None and time.monotonic() - began < 8:
                client.sendall(b" ")
                time.sleep(0.2)
    assert time.monotonic() - began < 5
    assert "process 1 of 2 did not connect within 2 s" in end(first)[0]


STOP = b'{"nonce": "0"}\n{"proof": "PROOF"}\n{"stop": "go away", "source": "a", "code": 0}\n'


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b'{"nonce": "0"}\n{"value": 3}\n',
        b'{"nonce": "0"}\n{"stop": 1}\n',
        b'{"nonce": 0}\n',
        b"[" * 200_000 + b"\n",
    ],
)
def test_what_is_not_process_0_is_named(start: Start, answer: bytes) -> None:
    with served(answer) as at:
        process = start(1, seconds=0.5, at=at)
        (text,) = end(process)
    assert f"process 0 did not answer at {at} within 0.5 s" in text
    assert "Traceback" not in text
    assert process.returncode == 2


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


@pytest.mark.parametrize(
    ("secret", "code", "message"),
    [("", 2, "go away"), ("our own", 2, "process 0 did not answer at")],
)
def test_no_refusal_ends_with_success(start: Start, secret: str, code: int, message: str) -> None:
    """Whatever exit code a server sends; without the secret, nothing that it sends counts."""
    with served(STOP) as at:
        process = start(1, seconds=0.5, at=at, secret=secret)
        (text,) = end(process)
    assert message in text
    assert process.returncode == code


# --- who has another secret


@pytest.mark.parametrize(
    "fields",
    [{}, {"processes": 3}, {"proof": [1]}, {"proof": "\ud800"}, {"proof": "é" * 64}],
)
def test_a_stranger_without_the_secret_cannot_end_a_start(
    start: Start, address: str, fields: dict[str, object]
) -> None:
    first = start(0, secret="our own", seconds=60)
    with connect(address) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(greeting(stranger, **fields))
        assert stranger.recv(100) == b""
    assert_met(first, start(1, secret="our own\n"))


def test_a_proof_is_of_one_connection_only(
    start: Start, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("secrets", [("one", "two"), ("one", ""), ("", "two")])
def test_another_secret_is_named_by_both(start: Start, secrets: tuple[str, str]) -> None:
    processes = [start(index, seconds=3, secret=secrets[index]) for index in (0, 1)]
    first, second = end(*processes)
    assert re.search("[0-9]+ greetings with another MLSTM_JAX_SECRET .* from 127.0.0.1", first)
    assert "both need the same MLSTM_JAX_SECRET" in second
    assert [process.returncode for process in processes] == [2, 2]


# --- who disturbs the run


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON\n",
        b"3\n",
        b"[" * 200_000 + b"\n",
        b"{}\n",
        b'{"stop": 1}\n',
        b'{"stop": "a", "source": 2, "code": 1}\n',
        b'{"stop": "a", "source": "b", "code": "c"}\n',
        b'{"stop": "a", "source": "b", "code": 1e999}\n',
        b'{"stop": "a", "source": "b", "code": 1000}\n',
        b" " * (17 << 20),
    ],
)
def test_nonsense_in_a_run_ends_it_with_a_name(start: Start, address: str, line: bytes) -> None:
    first = start(0)
    with connect(address) as peer:
        peer.sendall(greeting(peer))
        read_until(peer, b"all are here")
        with contextlib.suppress(OSError):
            peer.sendall(line)
            read_until(peer, b'"stop"')
    (text,) = end(first)
    assert "process 1 (node2) sent something that is not a message of this run" in text
    assert "Traceback" not in text
    assert first.returncode == 1


def test_values_that_nobody_asked_for_end_a_run(start: Start, address: str) -> None:
    """Each value is taken before the next; more would fill the memory."""
    first = start(0, 3)
    with connect(address) as one, connect(address) as two:
        one.sendall(greeting(one, processes=3))
        two.sendall(greeting(two, index=2, processes=3))
        read_until(two, b"all are here")
        two.sendall(b'{"value": 2}\n' * 2)
        read_until(two, b'"stop"')
    (text,) = end(first)
    assert "process 2 (node2) sent something that is not a message of this run" in text


def test_a_killed_process_is_named_in_a_run(start: Start) -> None:
    processes = [start(index, hold=30) for index in (0, 1)]
    wait_for(processes[0], "met [0, 1]")
    processes[1].send_signal(signal.SIGKILL)
    (text,) = end(processes[0])
    assert re.search(r"process 1 \(.*\) is gone: it was killed", text)
    assert processes[0].returncode == 1


# --- over IPv6


@pytest.mark.skipif(not socket.has_ipv6, reason="Python was built without IPv6")
def test_processes_meet_over_ipv6(start: Start) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
            at = f"[::1]:{server.getsockname()[1]}"
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert_met(*(start(index, at=at) for index in (0, 1)))
