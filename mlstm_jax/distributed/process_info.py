"""Which process of a run this is: by its config, or by what srun, mpirun or Kubernetes set."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mlstm_jax.config import Distributed
from mlstm_jax.errors import UserError

# What srun, mpirun and a Kubernetes Job set: (number of processes, index of this one). mpirun goes
# first: in a job of SLURM its processes also have the variables of the srun that it uses itself.
_LAUNCHERS = {
    "mpirun": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    "the Kubernetes Job": (None, "JOB_COMPLETION_INDEX"),
}
# The same on one machine. SLURM has the numbers of all machines in one: 4(x2),3 for 4, 4 and 3.
_LOCAL = (
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"),
)
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class ProcessInfo:
    """Which process this is, of how many."""

    index: int
    processes: int


def process_info(distributed: Distributed, environment: Mapping[str, str]) -> ProcessInfo:
    """Return which process this is, by the config or else by its launcher's variables.

    Raises:
        UserError: a number is missing, or is none; or a launcher has started several processes,
            and the config names no coordinator: each would train the whole run by itself.
    """
    count, index = distributed.processes, distributed.index
    for launcher, (size_name, rank_name) in _LAUNCHERS.items():
        if rank_name not in environment or (size_name and size_name not in environment):
            continue
        if count is not None and (index is not None or distributed.coordinator is None):
            break
        size = _number(environment, size_name) if size_name else None
        if size == 1:
            continue
        if distributed.coordinator is None:
            if size is None:
                continue
            raise UserError(
                f"{launcher} has started {size} processes, but distributed.coordinator is not "
                "set: each would train the whole run by itself. Name the host of the first with "
                "--distributed.coordinator HOST:PORT (launch/ has ready files), or say "
                "--distributed.processes 1."
            )
        count = size if count is None else count
        index = _number(environment, rank_name) if index is None else index
        break
    if distributed.coordinator is None:
        if count not in (None, 1):
            raise UserError(
                f"distributed.processes is {count}, but distributed.coordinator is not set; give "
                "the address of process 0, --distributed.coordinator HOST:PORT."
            )
        return ProcessInfo(0, 1)
    if count is None or index is None:
        name = "processes" if count is None else "index"
        raise UserError(
            f"distributed.{name} is not set, and neither srun nor mpirun says it; give "
            f"--distributed.{name}."
        )
    if index >= count:
        raise UserError(f"distributed.index is {index}, but it must be below {count}, processes.")
    return ProcessInfo(index, count)


def local_device_ids(environment: Mapping[str, str]) -> list[int] | None:
    """Return which of the visible GPUs is this process's, where its machine runs one for each.

    None: all that are visible. So it is where JAX_LOCAL_DEVICE_IDS says it, and where the launcher
    has given each process GPUs of its own.

    Raises:
        UserError: the processes of this machine see fewer GPUs than they are; or a launcher's
            variable is no number.
    """
    if "JAX_LOCAL_DEVICE_IDS" in environment or environment.get("JAX_PLATFORMS") == "cpu":
        return None
    visible = _visible_gpus(environment)
    # With --gpu-bind=none it has them counted, but all see all. SLURM writes 2 or a100:2.
    if environment.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2] == str(visible):
        return None
    for size_name, rank_name in _LOCAL:
        if size_name not in environment or rank_name not in environment:
            continue
        processes, rank = _tasks_here(environment, size_name), _number(environment, rank_name)
        if processes == 1 or visible in (0, 1):
            return None
        if visible is not None and visible < processes:
            raise UserError(
                f"{processes} processes run on this machine ({size_name}="
                f"{environment[size_name]}), but they see {visible} GPUs ({_GPUS}="
                f"{environment[_GPUS]}), and each needs one of its own. Start at most {visible} on "
                "a machine. If these are this process's alone, say so: JAX_LOCAL_DEVICE_IDS="
                f"{','.join(map(str, range(visible)))}."
            )
        return [rank]
    return None


def _tasks_here(environment: Mapping[str, str], name: str) -> int:
    """Return how many processes the launcher has started on this machine."""
    text = environment[name]
    if not name.startswith("SLURM"):
        return _number(environment, name)
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part, re.ASCII)
        if match is None:
            raise UserError(f"{name} is {text!r}, but it must be as 4(x2),3; {_ADVICE}")
        counts += [int(match[1])] * int(match[2] or 1)
    node = _number(environment, "SLURM_NODEID") if "SLURM_NODEID" in environment else 0
    if node >= len(counts):
        raise UserError(f"SLURM_NODEID is {node}, but {name} is {text!r}; {_ADVICE}")
    return counts[node]


def _visible_gpus(environment: Mapping[str, str]) -> int | None:
    """Return how many GPUs CUDA_VISIBLE_DEVICES lets a process see; None: all there are."""
    if _GPUS not in environment:
        return None
    visible = 0
    for name in environment[_GPUS].split(","):
        # CUDA stops at the first that is none. SLURM writes NoDevFiles where a job has no GPU.
        if name.strip() in ("", "-1", "NoDevFiles"):
            break
        visible += 1
    return visible


_ADVICE = "the launcher sets it: unset it if it is left of another job."


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UserError(f"{name} is {text!r}, but it must be a whole number; {_ADVICE}")
    return int(text)
