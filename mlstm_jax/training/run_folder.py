"""The run folder: its lock, config.json and environment.json."""

import secrets
import shutil
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from mlstm_jax import digest, host, output, run
from mlstm_jax.checkpoint import Checkpoints
from mlstm_jax.config import PLACES, Config, differences, flatten, to_json
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import InUse, UserError
from mlstm_jax.record import FOLDER, steps_in
from mlstm_jax.terminal import tell
from mlstm_jax.training.metrics import FILE

_LOCK = ".lock"


def require_resumable(config: Config, before: Config | None, *, resume: bool) -> list[str]:
    """Raise UserError if no run of this config can go on in its folder; return what has changed.

    `before` is the config of the run there, see `config_of`; without it the config may change.
    """
    folder = Path(config.out)
    if (folder / run.WEIGHTS).exists():
        raise UserError(
            f"{folder} contains imported weights, not a run to resume; choose another folder with "
            "`out`."
        )
    if resume and not steps_in(folder):
        raise UserError(
            f"{folder} has no checkpoint to resume from; start the run without `resume`."
        )
    if before is None:
        if run.read_config(folder) is None and folder.exists() and not _is_unused(folder):
            raise UserError(f"{folder} exists and is not a run; choose another folder with `out`.")
        return []
    change = differences(before, config)
    if change.forbidden:
        raise UserError(
            f"the run in {folder} cannot resume with another "
            f"{', another '.join(change.forbidden)}. Repeat the config and the options of "
            "the command that began it, or start a new run with `out`."
        )
    if run.id_of(folder) is None:
        raise UserError(
            f"{folder / run.ENVIRONMENT}, which holds the run's id, is missing. Restore it "
            "from a copy, or begin a new run with another `out`, and this one as "
            "`train.start_from`."
        )
    return change.allowed


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Make and lock a run folder, so that only one process trains in it.

    A new folder is removed again if the run is refused before anything is written to it. Raises
    UserError or InUse if it cannot be locked; a file system without locks gets a warning.
    """
    is_new = not folder.exists()
    if is_new:
        output.require_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as file:
        _take_lock(file, folder)  # Otherwise the folder may be another process's.
        try:
            yield
        finally:
            if is_new and _is_unused(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _take_lock(file: IO[str], folder: Path) -> None:
    try:
        output.take_lock(file)
    except BlockingIOError:
        raise InUse(
            f"another process is training in {folder}; wait for it, or use another `out`."
        ) from None
    except OSError as error:
        if error.errno not in output.NO_LOCKS:
            # NFS returns EACCES also if another process has the lock.
            raise UserError(
                f"{folder} cannot be locked ({error.strerror}): another process is training in it, "
                "or the file system refuses locks. Wait for it, or use another `out`."
            ) from error
        tell(
            f"mlstm-jax: warning: the file system of {folder} has no locks "
            f"({error.strerror}); make sure that no other run trains in this folder."
        )


def require_one_run(cluster: Cluster, config: Config, corpus: Corpus) -> None:
    """Raise UserError if the processes differ in their number, code, config or corpus."""
    fields = flatten(config)
    values = {name: value for name, value in fields.items() if not name.startswith(PLACES)}
    values["distributed.processes"] = cluster.processes
    values["the program's code"] = host.code()
    values["the corpus's identity"] = corpus.identity[:12]
    cluster.require_equal(
        values | host.versions(),
        "Give every process the same versions, number of processes, config, options and corpus; "
        "`mlstm-jax inspect --verify` detects a damaged copy of a corpus.",
    )


def lock_together(
    stack: ExitStack, cluster: Cluster, config: Config, before: Config | None, *, resume: bool
) -> list[str]:
    """Check and lock the run folder in process 0; all must see the same checkpoints.

    See `require_resumable` and `lock`.
    """
    changed: list[str] = []
    if cluster.is_first:
        changed = require_resumable(config, before, resume=resume)
        stack.enter_context(lock(Path(config.out)))
        if config_of(Path(config.out)) != before:
            raise InUse(
                f"another process has trained in {config.out} since this one started; run the "
                "same command again."
            )
    changed = cluster.gather(changed)[0]
    content = zlib.crc32(to_json(before).encode()) if before else None
    cluster.require_equal(
        {
            "the steps of the checkpoints": steps_in(Path(config.out)),
            "the crc32 of the run's config": content,
        },
        "The file system shows some processes an old state of the run folder; start them again.",
    )
    return changed


def id_together(cluster: Cluster, folder: Path) -> str:
    """The id of the run in a folder, for all processes; process 0 draws a new run's."""
    identity = None
    if cluster.is_first:
        identity = run.id_of(folder) or secrets.token_hex(8)
    return str(cluster.gather(identity)[0])


def open_checkpoints(config: Config, identity: str) -> Checkpoints:
    """Open the checkpoints of a run to train it; close them after it."""
    folder = Path(config.out)
    # A divergence is detected this many steps after it began.
    reach = 1 + max(config.train.divergence_steps, config.precision.max_consecutive_skips)
    return Checkpoints(folder, identity, config.train.keep_checkpoints, reach=reach)


def config_of(folder: Path) -> Config | None:
    """The config of the run in a folder, once it has a checkpoint or a line of metrics."""
    return run.read_config(folder) if _has_begun(folder) else None


def _has_begun(folder: Path) -> bool:
    """Whether there is a checkpoint or a line of metrics."""
    lines = folder / FILE
    has_lines = lines.is_file() and lines.stat().st_size > 0
    return has_lines or bool(steps_in(folder))


def _is_unused(folder: Path) -> bool:
    """Whether a run ended in the folder before it wrote its config, or nothing is there."""
    if not folder.is_dir() or steps_in(folder):
        return False
    patterns = (_LOCK, FOLDER, run.ENVIRONMENT, "*.partial")
    return all(any(map(one.match, patterns)) for one in folder.iterdir())


def write_folder(config: Config, identity: str) -> None:
    """Write environment.json, with the run's id, and then config.json, each atomically."""
    folder = Path(config.out)
    digest.write_json(folder / run.ENVIRONMENT, host.describe_environment() | {"run": identity})
    output.write_text(folder / "config.json", to_json(config))
