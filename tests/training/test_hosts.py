"""Processes on two machines, each a network namespace of this one with an /etc/hosts of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlstm_jax.config import Train
from tests.training import runs

A, B = "10.77.0.1", "10.77.0.2"
PORT = 8476


class Machine:
    """A network namespace with one link to another."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.hosts = name, folder / name
        # The bind mount is seen by this command alone.
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        self.prefix = ["ip", "netns", "exec", name, "sh", "-c", script, str(self.hosts)]
        self.set_hosts()

    def set_hosts(self, **addresses: str) -> None:
        lines = [f"{address} {name}\n" for name, address in addresses.items()]
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))


def ip(words: str) -> None:
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"`ip {words}`: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Machine]]:
    """Two machines, A and B, on one link, which is also their default route."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("mount"):
        pytest.skip("network namespaces need root and iproute2")
    folder = tmp_path_factory.mktemp("hosts")
    a, b = (Machine(f"mlstm-{letter}-{os.getpid()}", folder) for letter in "ab")
    try:
        try:
            for machine in (a, b):
                ip(f"netns add {machine.name}")
            ip(f"link add eth0 netns {a.name} type veth peer name eth0 netns {b.name}")
            for machine, address, other in ((a, A, B), (b, B, A)):
                ip(f"-n {machine.name} link set lo up")
                ip(f"-n {machine.name} addr add {address}/24 dev eth0")
                ip(f"-n {machine.name} link set eth0 up")
                ip(f"-n {machine.name} route add default via {other}")
            subprocess.run([*a.prefix, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield a, b
    finally:
        for machine in (a, b):
            subprocess.run(["ip", "netns", "del", machine.name], capture_output=True)


def run_on(
    where: Sequence[Machine], environment: dict[str, str], words: Callable[[int], Sequence[str]]
) -> tuple[list[int], list[str]]:
    """Run a command on each of these machines; return exit codes and what they have written."""
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    processes = [
        subprocess.Popen([*machine.prefix, *words(index)], env=environment, **pipe)
        for index, machine in enumerate(where)
    ]
    try:
        texts = [process.communicate(timeout=200)[0].decode() for process in processes]
        return [process.returncode for process in processes], texts
    finally:
        for process in processes:
            process.kill()


def train(
    environment: dict[str, str], at: str, machines: Sequence[Machine], corpus: Path, folder: Path
) -> tuple[list[int], list[str]]:
    """Train one run on these machines, as a user would."""
    few = Train(steps=20, log_every=5, eval_every=20)
    config = runs.make_config(corpus, folder / "run", train=few)
    file = runs.write_config(config, folder / "config.py")
    command = [str(Path(sys.executable).parent / "mlstm-jax"), "train", str(file)]
    command += ["--distributed.coordinator", f"{at}:{PORT}", "--devices.virtual-cpu", "1"]
    command += ["--distributed.processes", str(len(machines)), "--distributed.index"]
    return run_on(machines, environment, lambda index: [*command, str(index)])


@pytest.mark.slow
def test_two_machines_train_one_run(machines, corpus, tmp_path, command_environment) -> None:
    a, b = machines
    own = os.uname().nodename
    a.set_hosts(**{"node1": A, own: A})
    b.set_hosts(**{"node1": A, own: B})
    # As of a site's proxy, which knows nothing of these machines.
    environment = command_environment | {"http_proxy": "http://127.0.0.1:9"}
    codes, texts = train(environment, "node1", machines, corpus, tmp_path)
    assert codes == [0, 0], texts
