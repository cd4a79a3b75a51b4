"""Where process 0 listens, by what the coordinator's name stands for."""

import contextlib
import errno
import os
import socket
from collections.abc import Callable

import pytest

from mlstm_jax.config.sections import Address, is_loopback
from mlstm_jax.distributed import connection
from mlstm_jax.errors import UserError

Hosts = Callable[[str, str], list[str]]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Return at which hosts process 0 listens, where /etc/hosts gives a name some addresses."""
    resolve = socket.getaddrinfo

    def listen_at(name: str, addresses: str) -> list[str]:
        def getaddrinfo(host: str, *words: object, **options: object) -> list[object]:
            found = addresses.split() if host == name else [host]
            return [one for each in found for one in resolve(each, *words, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        with contextlib.ExitStack() as stack:
            servers = connection.listen(Address(name, free_port()))
            return [stack.enter_context(one).getsockname()[0] for one in servers]

    return listen_at


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def outward(monkeypatch: pytest.MonkeyPatch) -> str:
    """This machine's address on its default route."""
    monkeypatch.setattr(connection, "_FAR", {socket.AF_INET: "192.0.2.1"})
    found = [where[0] for _, where in connection._outward(1)]
    if not found:
        pytest.skip("this machine has no default route")
    return found[0]


@pytest.mark.parametrize(
    ("name", "addresses", "expected"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("ip6-localhost", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.0.1.1", "127.0.1.1", "127.0.1.1"),
        # As Debian's /etc/hosts has it; localhost's other processes still find it.
        ("node1", "127.0.1.1", "127.0.1.1 OUTWARD"),
        ("node1", "OUTWARD", "OUTWARD"),
        ("node1", "127.0.1.1 OUTWARD", "127.0.1.1 OUTWARD"),
    ],
)
def test_it_listens_beyond_loopback_unless_that_is_meant(name, addresses, expected, hosts, outward):
    found = hosts(name, addresses.replace("OUTWARD", outward))
    assert found == expected.replace("OUTWARD", outward).split()


def test_addresses_that_are_not_of_this_machine_are_passed_over(hosts: Hosts) -> None:
    # TEST-NET-3 is nobody's.
    assert hosts("localhost", "203.0.113.1 127.0.0.1") == ["127.0.0.1"]
    with pytest.raises(UserError, match=r"cannot listen at .* node1:.*address at which the others"):
        hosts("node1", "203.0.113.1")


def test_without_a_default_route_there_is_loopback(hosts, monkeypatch):
    def connect(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(socket.socket, "connect", connect)
    assert hosts("node1", "127.0.1.1") == ["127.0.1.1"]


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen at .* 127.0.0.1:{port} .*in use"):
            connection.listen(Address("127.0.0.1", port))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (["10.0.0.1"], ""),
        (["127.0.1.1"], "listens only at 127.0.1.1, which processes on other machines cannot"),
        (["127.0.1.1", "10.0.0.1"], "node1 resolves to 127.0.1.1 on the machine of process 0"),
    ],
)
def test_what_may_keep_others_away_is_told(found: list[str], words: str) -> None:
    told = connection.reach_note("node1", found)
    assert words in told
    assert bool(words) == bool(told)


def test_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.0.1.1", "::1")))
    assert not any(map(is_loopback, ("10.0.0.1", "fd00::1", "fe80::1%eth0", "0.0.0.0")))
