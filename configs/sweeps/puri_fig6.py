"""Batch size against convergence in three epochs: Puri et al. 2018, section IX-B and Fig. 6.

Corpus:    as amazon_4096
Command:   mlstm-jax sweep puri_fig6 --out runs/puri_fig6
Hardware:  8, 16, 32, 64, 128 V100 (the paper's), 256 rows each: 23.7, 25.3, 14.0, 7.1, 3.5 hours
Expected:  BPC 1.102, 1.090, 1.104, 1.116, 1.132
"""

from mlstm_jax.config import load_file, vary

# 3e-3 decays to zero over 100,000 updates for every batch size; at most three epochs.
base = vary(load_file("amazon_4096"), optimizer__decay_steps=100_000)
runs = {
    (str(batch), "3e-3"): vary(base, data__batch=batch, data__batch_per_device=None)
    for batch in (2048, 4096, 8192, 16384, 32768)
}
