r"""LEGW on its paper's own ground: the runs of legw_128.py with an LSTM.

Corpus:    that of legw_128.py
Command:   mlstm-jax sweep legw_lstm --out runs/legw_lstm
Hardware:  CPU cores with AVX512_BF16, five minutes per run on each

The LSTM has as many parameters as the mLSTM of 128 units, within 1%. Not run yet.
"""

import dataclasses
import runpy
from pathlib import Path

from mlstm_jax.config import LSTM

runs = {
    key: dataclasses.replace(config, model=LSTM(hidden=144, embedding=64))
    for key, config in runpy.run_path(str(Path(__file__).parent / "legw_128.py"))["runs"].items()
}
