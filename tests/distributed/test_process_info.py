"""Which process this is, and which GPUs are its own, by what launchers set."""

import pytest

from mlstm_jax.config import Distributed
from mlstm_jax.distributed.process_info import local_device_ids, process_info
from mlstm_jax.errors import UserError

NONE = Distributed()
HEAD = Distributed(coordinator="node1:8476")
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
JOB = {"JOB_COMPLETION_INDEX": "5"}


@pytest.mark.parametrize(
    ("distributed", "environment", "expected"),
    [
        (NONE, {}, (0, 1)),
        (NONE, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, (0, 1)),
        (NONE, JOB, (0, 1)),
        (HEAD, SRUN, (3, 4)),
        (HEAD, MPIRUN, (1, 2)),
        # mpirun starts its daemons by srun, one a machine.
        (HEAD, SRUN | MPIRUN, (1, 2)),
        (Distributed(coordinator="node1:8476", processes=8), JOB, (5, 8)),
        (Distributed(coordinator="node1:8476", processes=4, index=2), SRUN, (2, 4)),
        (Distributed(processes=1), SRUN, (0, 1)),
    ],
)
def test_the_launcher_says_which_process_this_is(distributed, environment, expected):
    assert process_info(distributed, environment) == expected


@pytest.mark.parametrize(
    ("distributed", "environment", "message"),
    [
        (NONE, SRUN, "srun has started 4 processes, but distributed.coordinator is not set"),
        (NONE, MPIRUN, "mpirun has started 2 processes"),
        (Distributed(processes=2), {}, "distributed.processes is 2, but distributed.coordinator"),
        (HEAD, {}, "distributed.processes is not set"),
        (HEAD, JOB, "distributed.processes is not set"),
        (Distributed(coordinator="a:1", processes=2), {}, "distributed.index is not set"),
        (Distributed(coordinator="a:1", processes=2), JOB, "distributed.index is 5"),
    ],
)
def test_what_a_launcher_does_not_say_is_asked_for(distributed, environment, message):
    with pytest.raises(UserError, match=message):
        process_info(distributed, environment)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.0", "²", "1" * 5000])
@pytest.mark.parametrize(
    ("name", "others"), [(name, others) for others in (SRUN, MPIRUN) for name in others]
)
def test_a_launchers_number_that_is_none_is_named(name, others, text):
    with pytest.raises(UserError, match=f"{name} is .*, but it must be a whole number"):
        process_info(HEAD, others | {name: text})


def test_a_launchers_number_is_not_read_where_the_config_says_it() -> None:
    own = Distributed(coordinator="node1:8476", processes=4, index=2)
    for environment in ({**SRUN, "SLURM_PROCID": "x"}, {"JOB_COMPLETION_INDEX": "x"}):
        assert process_info(own, environment) == (2, 4)
        assert process_info(Distributed(processes=1), environment) == (0, 1)


def slurm(
    tasks: str, rank: int, node: int = 0, gpus: str | None = None, **more: str
) -> dict[str, str]:
    found = {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_LOCALID": str(rank)}
    visible = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
    return found | {"SLURM_NODEID": str(node)} | visible | more


def mpi(tasks: int, rank: int, gpus: str | None = None) -> dict[str, str]:
    found = {"OMPI_COMM_WORLD_LOCAL_SIZE": str(tasks), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
    return found if gpus is None else found | {"CUDA_VISIBLE_DEVICES": gpus}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        # One process a machine has all that it sees.
        (slurm("1", 0, gpus="0,1"), None),
        (slurm("1(x4)", 0, node=3), None),
        (mpi(1, 0, "0,1"), None),
        # One process a GPU.
        (slurm("4", 3), [3]),
        (slurm("4(x2)", 1, node=1, gpus="0,1,2,3"), [1]),
        (slurm("2", 1, gpus="6,7"), [1]),
        (slurm("2", 0, gpus="GPU-8932f937-d72c,GPU-8932f938-aa12"), [0]),
        (mpi(8, 7), [7]),
        (mpi(2, 1, "0,1"), [1]),
        # As many as this machine has, not the first of the run.
        (slurm("1,2", 0, node=0), None),
        (slurm("1,2", 1, node=1), [1]),
        (slurm("2(x3),1", 1, node=2), [1]),
        (slurm("2(x3),1", 0, node=3), None),
        # The launcher has shared the GPUs out already.
        (slurm("4", 3, gpus="3"), None),
        (mpi(4, 3, "0"), None),
        (slurm("4", 3, gpus="0,1", SLURM_GPUS_PER_TASK="2"), None),
        (slurm("4", 3, gpus="0,1", SLURM_GPUS_PER_TASK="a100:2"), None),
        (slurm("4", 3, gpus="0,1,2,3", SLURM_GPUS_PER_TASK="1"), [3]),
        (slurm("1(x2)", 0) | mpi(2, 1), [1]),
        (slurm("4", 3, gpus="6,7", JAX_LOCAL_DEVICE_IDS="0,1"), None),
        # No GPU.
        (slurm("4", 3, gpus=""), None),
        (slurm("4", 3, gpus="NoDevFiles"), None),
        (mpi(4, 3, "-1,0"), None),
        (slurm("4", 3, gpus="0,1", JAX_PLATFORMS="cpu"), None),
    ],
)
def test_which_gpus_are_a_processs_own(environment, expected):
    assert local_device_ids(environment) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            slurm("4", 3, gpus="0,1"),
            r"4 processes run on this machine \(SLURM_STEP_TASKS_PER_NODE=4\), but they see 2 GPUs "
            r"\(CUDA_VISIBLE_DEVICES=0,1\).*Start at most 2.*JAX_LOCAL_DEVICE_IDS=0,1\.",
        ),
        # All of them end, not those alone for whom there is none.
        (slurm("4", 0, gpus="0,1"), "4 processes run on this machine"),
        (mpi(3, 0, "0,1"), r"3 processes .*\(OMPI_COMM_WORLD_LOCAL_SIZE=3\), but they see 2 GPUs"),
        (slurm("x", 0), "SLURM_STEP_TASKS_PER_NODE is 'x'"),
        (slurm("2(x", 0), "SLURM_STEP_TASKS_PER_NODE is"),
        (slurm("", 0), "SLURM_STEP_TASKS_PER_NODE is ''"),
        (slurm("2(x3),1", 0, node=4), "SLURM_NODEID is 4"),
        (slurm("2", 0) | {"SLURM_LOCALID": "x"}, "SLURM_LOCALID is 'x'"),
        (slurm("2", 0) | {"SLURM_NODEID": ""}, "SLURM_NODEID is ''"),
        (mpi(2, 0) | {"OMPI_COMM_WORLD_LOCAL_SIZE": ""}, "OMPI_COMM_WORLD_LOCAL_SIZE is ''"),
    ],
)
def test_gpus_that_cannot_be_shared_are_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        local_device_ids(environment)
