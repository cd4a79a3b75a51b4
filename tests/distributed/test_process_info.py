"""Which process this is, and which GPU is its own."""

import pytest

from mlstm_jax.config import Distributed
from mlstm_jax.distributed import choose_gpu, process_info
from mlstm_jax.errors import UserError

NONE = Distributed()
HEAD = Distributed(coordinator="node1:8476")
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
JOB = {"JOB_COMPLETION_INDEX": "5"}


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        (NONE, {}, (0, 1)),
        (NONE, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, (0, 1)),
        (NONE, JOB, (0, 1)),
        # JAX finds process 0 itself.
        (NONE, SRUN, (3, 4)),
        (HEAD, SRUN, (3, 4)),
        (HEAD, MPIRUN, (1, 2)),
        # mpirun starts its daemons by srun, one a machine.
        (HEAD, SRUN | MPIRUN, (1, 2)),
        (Distributed(coordinator="node1:8476", processes=8), JOB, (5, 8)),
        (Distributed(coordinator="node1:8476", processes=4, index=2), SRUN, (2, 4)),
        (Distributed(processes=1), SRUN, (0, 1)),
        (Distributed(processes=1), SRUN | {"SLURM_PROCID": "x"}, (0, 1)),
    ],
)
def test_index_and_count(options, environment, expected) -> None:
    assert process_info(options, environment) == expected


@pytest.mark.parametrize(
    ("options", "environment", "field"),
    [
        (Distributed(processes=2), {}, "distributed.index"),
        (HEAD, {}, "distributed.processes"),
        (HEAD, JOB, "distributed.processes"),
        (Distributed(coordinator="a:1", processes=2), JOB, "distributed.index is 5"),
        (HEAD, SRUN | {"SLURM_PROCID": "-1"}, "distributed.index is -1"),
        (HEAD, SRUN | {"SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
    ],
)
def test_a_missing_or_wrong_number_is_named(options, environment, field) -> None:
    with pytest.raises(UserError, match=field):
        process_info(options, environment)


@pytest.mark.parametrize(
    ("hosts", "visible", "expected"),
    [
        # One process a machine has all that it sees.
        ("ab", [None, None], [None, None]),
        ("ab", ["0,1", "0,1"], [None, None]),
        # Several share what they see.
        ("aa", [None, None], [0, 1]),
        ("aabb", ["0,1"] * 4, [0, 1, 0, 1]),
        ("aba", ["0,1", "0,1", "0,1"], [0, None, 1]),
        # The launcher has shared the GPUs out already.
        ("aa", ["0", "1"], [None, None]),
        ("aa", ["0", "0"], [None, None]),
        ("aa", ["0,1", "2,3"], [None, None]),
        # No GPU.
        ("aa", ["", ""], [None, None]),
    ],
)
def test_the_gpu_of_a_process(hosts, visible, expected) -> None:
    chosen = [choose_gpu(index, list(hosts), visible) for index in range(len(hosts))]
    assert chosen == expected


def test_too_few_gpus_are_named() -> None:
    with pytest.raises(UserError, match=r"CUDA_VISIBLE_DEVICES is '0,1'.* 3 .* on a"):
        choose_gpu(0, ["a"] * 3, ["0,1"] * 3)
