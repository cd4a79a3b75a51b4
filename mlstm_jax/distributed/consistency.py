"""What all processes of a run must have in common, looked at before anything is compiled."""

from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

from mlstm_jax import config_differences, config_text, environment, run
from mlstm_jax.config import Config
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.errors import UserError


def require_one_run(cluster: Cluster, config: Config, corpus: Corpus) -> None:
    """Raise UserError where a process has other code, another config or another corpus."""
    cluster.require_equal(
        {"the program's code": environment.code(), **environment.versions()},
        "Install the same on all.",
    )
    fields = config_differences.flatten(config).items()
    cluster.require_equal(
        {name: value for name, value in fields if not name.startswith(config_differences.PLACES)},
        "Give every process the same config and options.",
    )
    cluster.require_equal(
        {"the corpus's identity": corpus.identity[:12]},
        "Prepare it once, and give every process a copy of that; `mlstm-jax inspect --verify` "
        "finds a damaged one.",
    )


def lock_run_folder(
    stack: ExitStack, cluster: Cluster, config: Config, *, resume: bool, reset_carry: bool
) -> list[str]:
    """Let process 0 hold the run folder, and the others see that it is the same; see run.claim."""
    changed: list[str] | None = None
    if cluster.is_first:
        claimed = run.lock_run_folder(config, resume=resume, reset_carry=reset_carry)
        changed = stack.enter_context(claimed)
    changed = cluster.gather(changed)[0]
    kept = run.read_config(Path(config.out))
    # A digest: the configs that all have seen would be long, in one message.
    seen = "none" if kept is None else sha256(config_text.to_json(kept).encode()).hexdigest()
    if any(other != seen for other in cluster.gather(seen)):
        raise UserError(
            f"the run folder {config.out} is not the same for all processes; it must lie on a file "
            "system that they share."
        )
    return changed or []
