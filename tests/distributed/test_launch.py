"""Every file of launch/ starts a run of two processes here; stubs play the launchers."""

import json
import os
import re
import socket
from pathlib import Path

import pytest

from mlstm_jax import shipped
from tests.training import runs
from tests.training.runs import free_address

LAUNCH = Path(__file__).parents[2] / "launch"
# As each launcher does on one machine: so many processes, each told its number, and all awaited.
_EACH = """
for ((n = 0; n < $size; n++)); do {names} "$@" & pids+=($!); done
for pid in "${{pids[@]}}"; do wait "$pid" || code=$?; done
exit ${{code:-0}}
"""
STUBS = {
    "mpirun": """
[ "$1 $3" = "-np --oversubscribe" ] || exit 64; size=$2; shift 3"""
    + _EACH.format(names="OMPI_COMM_WORLD_SIZE=$size OMPI_COMM_WORLD_RANK=$n"),
    "srun": """[ "$1" = "--kill-on-bad-exit=0" ] || exit 64; size=$SLURM_NTASKS; shift"""
    + _EACH.format(names="SLURM_STEP_NUM_TASKS=$size SLURM_PROCID=$n SLURM_LOCALID=$n"),
}

Call = tuple[list[str], dict[str, str]]


def by_hand(config: str) -> list[Call]:
    words = [str(LAUNCH / "by_hand.sh"), free_address(), "2"]
    return [([*words, "0", config], {}), ([*words, "1", config], {})]


def openmpi(config: str) -> list[Call]:
    own = {"COORDINATOR": free_address(), "MPIRUN_OPTIONS": "--oversubscribe"}
    return [([str(LAUNCH / "openmpi.sh"), "2", config], own)]


def slurm(config: str) -> list[Call]:
    """JAX makes the port of the job's number, from 61440."""
    for job in range(os.getpid() % 2000, 4096):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 61440 + job)):
                break
    own = {"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": str(job)}
    return [(["bash", str(LAUNCH / "slurm.sbatch"), config], own)]


def kubernetes(config: str) -> list[Call]:
    """The command of the container, in two pods; names of the cluster become local ones."""
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    name = job["metadata"]["name"]
    address = free_address()
    assert spec["completionMode"] == "Indexed"
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    command = container["command"]
    count = spec["completions"]
    assert spec["parallelism"] == count
    assert command[:2] == ["mlstm-jax", "train"]
    assert command[2] in shipped.files("config")
    local = {
        f"--distributed.coordinator={name}-0.{name}:8476": f"--distributed.coordinator={address}",
        f"--distributed.processes={count}": "--distributed.processes=2",
        command[2]: config,
    }
    assert local.keys() <= set(command)
    # The places are the run's own, under the volume's mount.
    words = [local.get(word, word) for word in command if "=/shared/" not in word]
    assert len(words) == len(command) - 2
    return [(words, {"JOB_COMPLETION_INDEX": "0"}), (words, {"JOB_COMPLETION_INDEX": "1"})]


START = {"by_hand.sh": by_hand, "kubernetes.yaml": kubernetes}
START |= {"openmpi.sh": openmpi, "slurm.sbatch": slurm}


@pytest.mark.parametrize(
    "name",
    [
        # `make test` has the one without a stand-in.
        pytest.param(path.name, marks=() if path.name == "by_hand.sh" else pytest.mark.slow)
        for path in sorted(LAUNCH.iterdir())
    ],
)
def test_files_of_launch(name, corpus, tmp_path, launcher) -> None:
    for stub, text in STUBS.items():
        (tmp_path / stub).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / stub).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{launcher.environment['PATH']}"
    train = runs.short(steps=2, epochs=None, eval_every=2, checkpoint_every=2)
    config = runs.make_config(corpus, tmp_path / "run", train=train)
    file = runs.write_config(config, tmp_path / "config.py")
    for words, own in START[name](str(file)):
        # As of a site's proxy, which knows nothing of these machines.
        launcher.call(*words, **own, PATH=path, http_proxy="http://127.0.0.1:9")
    said = "\n".join(launcher.ended(0))
    assert json.loads((tmp_path / "run/environment.json").read_text())["processes"] == 2
    assert re.search(r"training 2 steps.* on 2 cpu device", said), said
