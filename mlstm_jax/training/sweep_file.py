"""The file of a sweep: its runs, and what one process that trains them all must set."""

from pathlib import Path

from mlstm_jax import environment, shipped, user_python
from mlstm_jax.config import Config
from mlstm_jax.errors import UserError

Runs = dict[tuple[str, str], Config]


def load_sweep(path: Path) -> Runs:
    """Run a specification, which is the user's own Python code, and return its ``runs``.

    A bare name that is not a file selects a sweep that comes with the package: ``puri_fig5``.

    Raises:
        UserError: the file does not exist, sets no runs, or has labels that cannot name a folder.
    """
    path = shipped.find(path, "sweep")
    runs = user_python.run(path, "sweep").get("runs")
    valid = isinstance(runs, dict) and all(
        isinstance(key, tuple)
        and len(key) == 2
        and all(isinstance(label, str) and label and "/" not in label for label in key)
        and isinstance(config, Config)
        for key, config in runs.items()
    )
    if not valid or not runs:
        raise UserError(
            f"{path} sets no `runs = {{(ROW, COLUMN): Config(...)}}` with two labels without /; "
            "see `mlstm-jax configs puri_fig5`."
        )
    return runs


def prepare(runs: Runs) -> None:
    """Set what JAX reads when it starts, as the runs need it; see `environment.prepare`.

    Raises:
        UserError: the runs have different numbers of virtual devices.
    """
    if not runs:
        return
    counts = {config.devices.virtual_cpu: key for key, config in runs.items()}
    if len(counts) > 1:
        (one, key), (other, other_key) = list(counts.items())[:2]
        raise UserError(
            f"devices.virtual_cpu is {one} in the run {' / '.join(key)}, but {other} in "
            f"{' / '.join(other_key)}; one process trains all runs of a sweep, so set the same "
            "number in all."
        )
    first = next(iter(runs.values()))
    deterministic = any(config.train.deterministic for config in runs.values())
    environment.prepare(first.devices, deterministic=deterministic)
