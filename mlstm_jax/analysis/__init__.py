"""Tables and curves of runs, used by the notebooks for the project's runs or your own.

The runs of a study in results/ are one file, runs.jsonl.gz: a line for each, an object with `run`
(its name), `config`, `environment` and `metrics` (the lines of metrics.jsonl).

Needs pandas and matplotlib (the extra `notebooks`), which training does not need. A table is a
pandas DataFrame; a curve is drawn on axes that the caller creates. The examples assume:

>>> import numpy as np
>>> import pandas as pd
>>> from mlstm_jax import analysis
>>> histories = analysis.load_histories("runs/mine")
"""

from mlstm_jax.analysis.curves import limits, plot, plot_runs, smooth
from mlstm_jax.analysis.histories import History, load_histories
from mlstm_jax.analysis.summaries import formatted, grid, noise_scale, summary, updates_to

__all__ = [
    "History",
    "formatted",
    "grid",
    "limits",
    "load_histories",
    "noise_scale",
    "plot",
    "plot_runs",
    "smooth",
    "summary",
    "updates_to",
]
