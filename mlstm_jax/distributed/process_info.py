"""Which process of a run this is: from its config, or from srun, mpirun or Kubernetes."""

import re
from collections.abc import Mapping
from itertools import takewhile

from mlstm_jax.config import Distributed
from mlstm_jax.errors import UserError, require

# The variables that srun, mpirun and a Kubernetes Job set: (number of processes, index of this
# one). mpirun is first: in a SLURM job its processes also have the variables of the srun that it
# uses internally.
_LAUNCHERS = {
    "mpirun": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    "the Kubernetes Job": (None, "JOB_COMPLETION_INDEX"),
}
# The same for one machine. SLURM lists the numbers of all machines: 4(x2),3 means 4, 4 and 3.
_LOCAL = (
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"),
)
_GPUS = "CUDA_VISIBLE_DEVICES"
_ADVICE = "the launcher sets it; unset it if it comes from another job."


def process_info(distributed: Distributed, environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the index of this process, and the number of processes.

    They are from the config, or else from the launcher's variables.

    Raises:
        UserError: a number is missing or invalid; or a launcher has started several processes, but
            the config names no coordinator, so that each would train the whole run by itself.
    """
    count, index, coordinator = distributed.processes, distributed.index, distributed.coordinator
    for launcher, (size_name, rank_name) in _LAUNCHERS.items():
        if rank_name not in environment or (size_name and size_name not in environment):
            continue
        if count is not None and (index is not None or coordinator is None):
            break
        size = _number(environment, size_name) if size_name else None
        if size == 1:
            continue
        if coordinator is None:
            if size is None:
                continue
            raise UserError(
                f"{launcher} has started {size} processes, but distributed.coordinator is not "
                "set: each would train the whole run by itself. Name the host of process 0 with "
                "`distributed.coordinator` HOST:PORT (see the files in launch/), or set "
                "`distributed.processes` 1."
            )
        count = size if count is None else count
        index = _number(environment, rank_name) if index is None else index
        break
    if coordinator is None:
        if count not in (None, 1):
            raise UserError(
                f"distributed.processes is {count}, but distributed.coordinator is not set; set "
                "the address of process 0 with `distributed.coordinator` HOST:PORT."
            )
        return 0, 1
    if count is None or index is None:
        name = "processes" if count is None else "index"
        raise UserError(
            f"distributed.{name} is not set, and neither srun nor mpirun sets it; add "
            f"`distributed.{name}`."
        )
    require(index < count, "distributed.index", index, f"below {count}, the process count")
    return index, count


def local_device_ids(environment: Mapping[str, str]) -> list[int] | None:
    """Return which of the visible GPUs this process uses, if its machine runs one process per GPU.

    None leaves the choice to JAX: the GPUs in JAX_LOCAL_DEVICE_IDS, or else all visible ones, for
    example if the launcher has assigned GPUs to each process.

    Raises:
        UserError: the processes of this machine see fewer GPUs than there are processes; or a
            launcher's variable is not a number.
    """
    if "JAX_LOCAL_DEVICE_IDS" in environment or environment.get("JAX_PLATFORMS") == "cpu":
        return None
    visible = _visible_gpus(environment)
    # With --gpu-bind=none the variable is set, but every process sees all GPUs. SLURM writes 2 or
    # a100:2.
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
                f"{environment[_GPUS]}), and each needs its own. Start at most {visible} per "
                "machine. If these GPUs belong only to this process, set JAX_LOCAL_DEVICE_IDS="
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
            raise UserError(f"{name} is {text!r}, but it must have the form 4(x2),3; {_ADVICE}")
        counts += [int(match[1])] * int(match[2] or 1)
    node = _number(environment, "SLURM_NODEID") if "SLURM_NODEID" in environment else 0
    if node >= len(counts):
        raise UserError(f"SLURM_NODEID is {node}, but {name} is {text!r}; {_ADVICE}")
    return counts[node]


def _visible_gpus(environment: Mapping[str, str]) -> int | None:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES makes visible; None: all."""
    if _GPUS not in environment:
        return None
    # CUDA stops at the first invalid entry. SLURM writes NoDevFiles if a job has no GPU.
    none = ("", "-1", "NoDevFiles")
    names = environment[_GPUS].split(",")
    return len(list(takewhile(lambda name: name.strip() not in none, names)))


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UserError(f"{name} is {text!r}, but it must be a whole number; {_ADVICE}")
    return int(text)
