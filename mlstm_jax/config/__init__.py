"""The configuration of an experiment.

A config file is a Python module that sets ``config = Config(...)``. A command line starts from it
and overrides single fields: ``mlstm-jax train small_512 --optimizer.learning-rate 1e-3``. A config
may import jax, but must not start its backend: devices and flags are set after it is read.
"""

from mlstm_jax.config.experiment import Config, load_file, longest_window, resolve_batch, vary
from mlstm_jax.config.optimizer import Optimizer
from mlstm_jax.config.sections import (
    MOST_SEED,
    MOST_STEPS,
    Data,
    Devices,
    Distributed,
    require_seed,
)
from mlstm_jax.config.train import Phase, Train
from mlstm_jax.model.flax_cells import GRU, LSTM
from mlstm_jax.model.mlstm import MLSTM
from mlstm_jax.model.transformer import BERT, Transformer
from mlstm_jax.precision import Compute, Precision

Model = MLSTM

__all__ = [
    "BERT",
    "GRU",
    "LSTM",
    "MLSTM",
    "MOST_SEED",
    "MOST_STEPS",
    "Compute",
    "Config",
    "Data",
    "Devices",
    "Distributed",
    "Model",
    "Optimizer",
    "Phase",
    "Precision",
    "Train",
    "Transformer",
    "load_file",
    "longest_window",
    "require_seed",
    "resolve_batch",
    "vary",
]
