r"""LEGW on its paper's own ground: the runs of legw_128 with an LSTM.

Corpus:    that of ../legw_128
Command:   mlstm-jax sweep results/legw_lstm/sweep.py --out runs/legw_lstm
Hardware:  CPU cores with AVX-512, eight to thirteen minutes per run on each

The LSTM has as many parameters as the mLSTM of 128 units, within 1%. It computes in fp32: on these
cores that is twice as fast as bf16. "weight norm": with weight normalisation, as the mLSTM has it,
and without which Muon needs another rate at another batch.
"""

import dataclasses
from pathlib import Path

from mlstm_jax.config import LSTM, Precision
from mlstm_jax.training.sweep import load_sweep

lstm = LSTM(hidden=144, embedding=64)
runs = {
    key: dataclasses.replace(config, model=lstm, precision=Precision(compute="fp32"))
    for key, config in load_sweep(Path(__file__).parents[1] / "legw_128/sweep.py").items()
}
normalised = dataclasses.replace(lstm, weight_norm=True)
runs |= {
    (batch, "Muon, weight norm"): dataclasses.replace(config, model=normalised)
    for (batch, name), config in list(runs.items())
    if name == "Muon"
}
