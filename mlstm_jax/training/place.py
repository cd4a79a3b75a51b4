"""Which process of a run this is: by its config, or by what srun, mpirun or Kubernetes set."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlstm_jax.config import Distributed
from mlstm_jax.errors import UserError

# What srun, mpirun and a Kubernetes Job set: (number of processes, index of this one).
_LAUNCHERS = {
    "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    "mpirun": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "the Kubernetes Job": (None, "JOB_COMPLETION_INDEX"),
}


@dataclass(frozen=True)
class Place:
    """Which process this is, of how many."""

    index: int
    processes: int


def place(distributed: Distributed, environment: Mapping[str, str]) -> Place:
    """Return which process this is, by the config or else by its launcher's variables.

    Raises:
        UserError: a number is missing; or a launcher has started several processes, and the config
            names no coordinator: each would train the whole run by itself.
    """
    count, index = distributed.processes, distributed.index
    for launcher, (size_name, rank_name) in _LAUNCHERS.items():
        size = int(environment.get(size_name, "1")) if size_name else None
        if rank_name not in environment or size == 1:
            continue
        if distributed.coordinator is None and count is None and size is not None:
            raise UserError(
                f"{launcher} has started {size} processes, but distributed.coordinator is not "
                "set: each would train the whole run by itself. Name the host of the first with "
                "--distributed.coordinator HOST:PORT (launch/ has ready files), or say "
                "--distributed.processes 1."
            )
        count = size if count is None else count
        index = int(environment[rank_name]) if index is None else index
        break
    if distributed.coordinator is None:
        if count not in (None, 1):
            raise UserError(
                f"distributed.processes is {count}, but distributed.coordinator is not set; give "
                "the address of process 0, --distributed.coordinator HOST:PORT."
            )
        return Place(0, 1)
    if count is None or index is None:
        name = "processes" if count is None else "index"
        raise UserError(
            f"distributed.{name} is not set, and neither srun nor mpirun says it; give "
            f"--distributed.{name}."
        )
    if index >= count:
        raise UserError(f"distributed.index is {index}, but it must be below {count}, processes.")
    return Place(index, count)
