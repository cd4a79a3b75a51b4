"""mlstm_jax: byte-level multiplicative-LSTM language models, trained on many devices.

docs/architecture.md has every file, and tests/test_layers.py the order of the layers.

Letters for dimensions, used as suffixes of array names (``bytes_BT``, ``wh_HG``):

    B  rows (streams) on one device        V  vocabulary, the 256 byte values
    T  bytes in a window                   E  embedding
    N  local devices, texts or bytes       H  hidden units
    L  layers                              G  gates, 4·H, in the order i, f, o, u
    I  rows of a layer's input matrices: 256 for the first, H for the others
    K  classes of a classifier; in data/, the shards of a row

In data/, B is the rows of a process, or of the whole batch. Other letters are explained where they
are used.

The words of this code:

    corpus     a folder of cleaned, shuffled text in splits, with the length of every document
    document   one text of a corpus
    shard      one of many nearly equal parts of a split, which a row reads from a zero state
    row        the shards that follow each other at one place of the batch
    window     the T bytes of each row that one step reads
    stream     the windows of all rows, step by step: a function of corpus, shapes, seed and step
    carry      the recurrent state between windows, in arrays with the rows first
    state      what a training step changes: parameters, moments, loss scale, counters
    objective  the targets of a window: the next byte, or masked bytes
    kind       a model by its name in a config, such as mlstm, gru, bert
    run        a folder with a config, metrics and checkpoints; and what trains in it

The source is Puri, Kirby, Yakovenko, Catanzaro 2018, "Large Scale Language Modeling: Converging on
40GB of Text in Four Hours" (arXiv 1808.01371). Its mLSTM is the *multiplicative* LSTM of Krause et
al. 2016, not the matrix LSTM of xLSTM.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mlstm_jax.api.features import Features as Features
    from mlstm_jax.api.features import FineTuned as FineTuned
    from mlstm_jax.api.functions import import_weights as import_weights
    from mlstm_jax.api.functions import plot_metrics as plot_metrics
    from mlstm_jax.api.functions import train as train
    from mlstm_jax.api.model import TrainedModel as TrainedModel
    from mlstm_jax.api.model import load as load
    from mlstm_jax.config import Config as Config
    from mlstm_jax.config import vary as vary
    from mlstm_jax.corpora.inspect import inspect as inspect
    from mlstm_jax.corpora.options import PrepareOptions as PrepareOptions
    from mlstm_jax.corpora.prepare import prepare as prepare
    from mlstm_jax.options import FinetuneOptions as FinetuneOptions
    from mlstm_jax.options import HeatmapOptions as HeatmapOptions
    from mlstm_jax.options import SamplingOptions as SamplingOptions
    from mlstm_jax.options import TransferOptions as TransferOptions
    from mlstm_jax.planning import plan as plan
    from mlstm_jax.training.sweep import sweep as sweep

# What the package gives, and where it is: read when it is asked for, so that `import mlstm_jax`
# takes no time and leaves the process as it is.
_MODULES = {
    "api.features": ("Features", "FineTuned"),
    "api.functions": ("import_weights", "plot_metrics", "train"),
    "api.model": ("TrainedModel", "load"),
    "config": ("Config", "vary"),
    "corpora.inspect": ("inspect",),
    "corpora.options": ("PrepareOptions",),
    "corpora.prepare": ("prepare",),
    "options": ("FinetuneOptions", "HeatmapOptions", "SamplingOptions", "TransferOptions"),
    "planning": ("plan",),
    "training.sweep": ("sweep",),
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(["__version__", *_PUBLIC])


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"mlstm_jax.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'mlstm_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
