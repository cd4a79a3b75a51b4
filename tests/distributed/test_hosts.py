"""Processes on two machines, each a network namespace of this one with an /etc/hosts of its own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlstm_jax.config import Train
from tests.training import runs

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(words: str) -> None:
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"`ip {words}`: {done.stderr.strip()}")


def prefix(machine: str, hosts: Path) -> list[str]:
    """Of a command that runs on a machine; the bind mount is seen by this command alone."""
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["ip", "netns", "exec", machine, "sh", "-c", script, str(hosts)]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[str]]:
    """Two machines on one link, which is also their default route."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("mount"):
        pytest.skip("network namespaces need root and iproute2")
    names = [f"mlstm-{letter}-{os.getpid()}" for letter in "ab"]
    try:
        try:
            for name in names:
                ip(f"netns add {name}")
            ip(f"link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}")
            for name, own, other in zip(names, ADDRESSES, ADDRESSES[::-1], strict=True):
                ip(f"-n {name} link set lo up")
                ip(f"-n {name} addr add {own}/24 dev eth0")
                ip(f"-n {name} link set eth0 up")
                ip(f"-n {name} route add default via {other}")
            (tmp_path / "hosts").touch()
            command = [*prefix(names[0], tmp_path / "hosts"), "true"]
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.slow
def test_two_machines(machines, corpus, tmp_path, launcher) -> None:
    """As a user would start it; both machines have one name, and a proxy knows neither."""
    few = Train(steps=20, log_every=5, eval_every=20)
    config = runs.make_config(corpus, tmp_path / "run", train=few)
    prefixes = []
    for machine, address in zip(machines, ADDRESSES, strict=True):
        hosts = tmp_path / machine
        names = {"localhost": "127.0.0.1", "node1": ADDRESSES[0], os.uname().nodename: address}
        hosts.write_text("".join(f"{address} {name}\n" for name, address in names.items()))
        prefixes.append(prefix(machine, hosts))
    proxies = [{"http_proxy": "http://127.0.0.1:9"}] * 2
    launcher.train([config] * 2, prefixes=prefixes, environments=proxies, coordinator="node1:8476")
    launcher.ended(0)
