"""What a process learns from the config and from its launcher, before it knows the others.

Its index, the number of processes, the address of process 0, and its own GPU.
"""

import os
import socket
from collections.abc import Mapping, Sequence

from jax._src.clusters import ClusterEnv

from mlstm_jax.config import Distributed
from mlstm_jax.errors import UserError, require

LONGEST = 1e6  # seconds of a time limit: JAX counts in 32 bits

# Variables with the number of processes and the index of this one. mpirun is first: in a SLURM job
# its processes also have the variables of the srun that it uses.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
_KUBERNETES = "JOB_COMPLETION_INDEX"


def process_info(options: Distributed, environment: Mapping[str, str]) -> tuple[int, int]:
    """The index of this process and the number of processes: the config's, or a launcher's."""
    index = options.index
    count = options.processes
    if count == 1 and not index:
        return 0, 1
    for size_name, rank_name in _LAUNCHERS:
        if rank_name in environment and environment.get(size_name, "1") != "1":
            count = count or _number(size_name, environment)
            if index is None:
                index = _number(rank_name, environment)
            break
    if index is None and _KUBERNETES in environment:  # which does not give the number
        index = _number(_KUBERNETES, environment)
    if count is None and options.coordinator is None and options.index is None:
        return 0, 1
    if count is None or index is None:
        name = "processes" if count is None else "index"
        raise UserError(
            f"set `distributed.{name}`: srun, mpirun or Kubernetes would, but none of them started "
            "this process."
        )
    require(0 <= index < count, "distributed.index", index, f"0 to {count - 1}")
    return index, count


def _number(name: str, environment: Mapping[str, str]) -> int:
    value = environment[name]
    require(value.removeprefix("-").isdecimal(), name, value, "a whole number")
    return int(value)


def choose_gpu(index: int, hosts: Sequence[str], visible: Sequence[str | None]) -> int | None:
    """Which of the visible GPUs belongs to process `index`; None: all that it sees.

    `hosts` has the machine of each process, and `visible` its CUDA_VISIBLE_DEVICES, or None.
    """
    here = [other for other, host in enumerate(hosts) if host == hosts[index]]
    gpus = visible[index]
    has_own = gpus is not None and "," not in gpus  # from the launcher; "" is none
    if len(here) == 1 or has_own or any(visible[other] != gpus for other in here):
        return None
    if gpus is not None:
        rule = f"a list of {len(here)} or more, one for each process on {hosts[index]}"
        fits = len(gpus.split(",")) >= len(here)
        require(fits, "CUDA_VISIBLE_DEVICES", gpus, f"{rule}; start fewer there")
    return here.index(index)


def find_coordinator(options: Distributed, index: int, processes: int) -> str:
    """HOST:PORT of process 0, of the config, JAX's variable, srun, mpirun or Kubernetes."""
    given = options.coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    if given:
        return given
    seconds = int(min(options.timeout_seconds, LONGEST))
    found, *_ = ClusterEnv.auto_detect_unset_distributed_params(
        None, processes, index, [], None, seconds
    )
    if not found:
        raise UserError(
            "the launcher does not give the address of process 0; set `distributed.coordinator` "
            "HOST:PORT."
        )
    return str(found)


def bind_address(coordinator: str) -> str:
    """Where process 0 listens: at this machine's own address only if that is the coordinator."""
    if coordinator.startswith(("localhost:", "127.")):
        return coordinator
    _, _, port = coordinator.rpartition(":")
    return os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", f"[::]:{port}")


def require_free_port(bind: str) -> None:
    """Raise UserError unless process 0 can listen there; JAX would die of SIGSEGV."""
    host, _, port = bind.removeprefix("[::]").rpartition(":")  # without a host: all addresses
    host = host.strip("[]")
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        place = (host, int(port))
        socket.create_server(place, family=family, dualstack_ipv6=both).close()
    except (OSError, OverflowError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"process 0 cannot listen at {bind} ({why}); set `distributed.coordinator` to "
            "HOST:PORT with another port, for all processes."
        ) from error
