"""How to fine-tune a model: one declaration for Python and for the command line."""

from dataclasses import dataclass
from typing import Annotated

from mlstm_jax.config import Compute
from mlstm_jax.config.sections import Seed
from mlstm_jax.fields import Between, Checked, Count, Fraction, Positive


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Checked):
    """How to fine-tune a model.

    Attributes:
        epochs: passes over the training texts.
        learning_rate: peak rate, reached after a tenth of the steps; it then falls to a 32nd.
        label_weight: how many bytes of the language model's loss one label counts as.
        batch: rows in the global batch.
        window: bytes of truncated back-propagation; a Transformer's is always `model.positions`.
        dropout: fraction of the units of each layer's output that are dropped.
        seed: of dropout and of the order of the text.
        compute: type of the matrix products; unset: that of the run. fp32 is that of the models of
            the package; bf16 is faster on GPUs, and on CPUs with AMX or AVX512_BF16.
    """

    epochs: Positive = 3.0
    learning_rate: Positive = 1e-3
    label_weight: Annotated[float, Between(0, ends="[)")] = 1000.0
    batch: Count = 32
    window: Count = 128
    dropout: Fraction = 0.2
    seed: Seed = 0
    compute: Compute | None = None
