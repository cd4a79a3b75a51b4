"""mlstm_jax: byte-level multiplicative-LSTM language models, trained on many devices.

Data flows one way, and imports go downward only::

    text ─prepare─▶ corpus ─stream─▶ batches ─step─▶ state ─▶ checkpoints, metrics ─▶ transfer

    cli.py, commands/      the `mlstm-jax` command, and its subcommands
    config.py              what one experiment is
    address.py             HOST:PORT
    config_text.py         configs as JSON, and the parsing of a command line
    config_differences.py  what may change when a run goes on
    fields.py              dataclasses from JSON, every type checked
    interruption.py        SIGTERM and Ctrl-C, where nothing is kept
    user_python.py         config and sweep files are run, and their mistakes named
    suggestion.py          the name that a mistyped one may stand for
    output.py          whether a folder can be made
    terminal.py            text for people, without what steers a terminal
    run.py                 a run folder: config, metrics, checkpoints → a model ready to use
    report.py              what a run learned, beside gzip, bz2 and xz
    evaluation.py          bits per character of a split
    dynamic_evaluation.py  the same, while the parameters learn from what they have scored
    machine.py             what a plan must know of the machines
    plan.py                how long a config takes, on what
    sweep.py               several runs and their table
    data/                  sources, readers, documents → prepare (duckdb_engine and _stage,
                           beam_engine, given_splits, corpus_writer) → corpus → shards → order →
                           stream, evaluation_stream; summary, markup, advice   (no jax)
    model/                 recurrence, layer, cell, scans, kernels, launch, stacks, inputs, product,
                           weight norm, the language model   (no data, no training)
    training/              loop, parts, step, adapting_step, all_reduce, state, optimizer, muon,
                           schedule, loss scale; start, resume, checkpoint (meta, checksum,
                           retention); parallel and replicas (devices); cluster, rendezvous,
                           listener, peer, place, agreement, signals, watchdog; metrics, reporter,
                           announcement
    transfer/              features, feature_file, labels, classify, experiment, baseline, report,
                           finetune; generate, reader, heatmap
    view/                  a local page that shows units and classes as one types
    compiled/              deviceless, hlo, kernels, estimate, summary: the program of a GPU that
                           need not be there
    interop/               other people's weights, in and out
    analysis.py            runs as tables and curves, for the notebooks

Letters for dimensions, used as suffixes of array names (``bytes_BT``, ``wh_HG``), everywhere:

    B  rows (streams) on one device        V  vocabulary, the 256 byte values
    T  bytes in a window                   E  embedding
    N  local devices (parallel.py only)    H  hidden units
    L  layers                              G  gates, 4·H, in the order i, f, o, u
    I  rows of a layer's input matrices: 256 for the first, H for the others

The source is Puri, Kirby, Yakovenko, Catanzaro 2018, "Large Scale Language Modeling: Converging on
40GB of Text in Four Hours" (arXiv 1808.01371). Its mLSTM is the *multiplicative* LSTM of Krause et
al. 2016, not the matrix LSTM of xLSTM.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mlstm_jax.api.features import Features
    from mlstm_jax.api.functions import plan, prepare, sweep, train
    from mlstm_jax.api.model import TrainedModel, load
    from mlstm_jax.api.plots import plot_metrics
    from mlstm_jax.config import Config, vary
    from mlstm_jax.data.prepare import PrepareOptions
    from mlstm_jax.transfer.finetune import FinetuneOptions

# What the package gives, and where it is: read when it is asked for, so that `import mlstm_jax`
# takes no time and leaves the process as it is.
_PUBLIC = {
    "Config": "config",
    "Features": "api.features",
    "FinetuneOptions": "transfer.finetune",
    "PrepareOptions": "data.prepare",
    "TrainedModel": "api.model",
    "load": "api.model",
    "plan": "api.functions",
    "plot_metrics": "api.plots",
    "prepare": "api.functions",
    "sweep": "api.functions",
    "train": "api.functions",
    "vary": "config",
}

__all__ = [
    "Config",
    "Features",
    "FinetuneOptions",
    "PrepareOptions",
    "TrainedModel",
    "__version__",
    "load",
    "plan",
    "plot_metrics",
    "prepare",
    "sweep",
    "train",
    "vary",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"mlstm_jax.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'mlstm_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
