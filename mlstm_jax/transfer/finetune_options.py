"""How to fine-tune a model: one declaration for Python and for the command line."""

import math
from dataclasses import dataclass

from mlstm_jax import fields
from mlstm_jax.config import Compute
from mlstm_jax.errors import require


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
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

    epochs: float = 3.0
    learning_rate: float = 1e-3
    label_weight: float = 1000.0
    batch: int = 32
    window: int = 128
    dropout: float = 0.2
    seed: int = 0
    compute: Compute | None = None

    def __post_init__(self) -> None:
        """Raise UserError if an option is of the wrong type or out of range."""
        fields.require_types(self)
        for name in ("epochs", "learning_rate"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, value, "above 0, and finite")
        require(0 <= self.label_weight < math.inf, "label_weight", self.label_weight, "0 or more")
        for name in ("batch", "window"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "from 0 to below 1")
