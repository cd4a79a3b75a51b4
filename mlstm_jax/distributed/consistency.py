"""What all processes of a run must have in common, checked before anything is compiled."""

from mlstm_jax import config_differences, environment
from mlstm_jax.config import Config
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.distributed.cluster import Cluster


def require_one_run(cluster: Cluster, config: Config, corpus: Corpus) -> None:
    """Raise UserError if the processes differ in their code, config or corpus."""
    cluster.require_equal(
        {"the program's code": environment.code(), **environment.versions()},
        "Install the same versions for all processes.",
    )
    fields = config_differences.flatten(config).items()
    cluster.require_equal(
        {name: value for name, value in fields if not name.startswith(config_differences.PLACES)},
        "Give every process the same config and options.",
    )
    cluster.require_equal(
        {"the corpus's identity": corpus.identity[:12]},
        "Prepare the corpus once, and give every process a copy; `mlstm-jax inspect --verify` "
        "detects a damaged copy.",
    )
