"""Radford et al. 2017, the baseline of Puri et al. 2018: batch 128, one epoch.

Corpus:    mlstm-jax prepare aggressive_dedup.json.gz --out corpora/amazon
Command:   mlstm-jax train radford_4096
Hardware:  4 Pascal GPUs, one month (the authors')
Expected:  1.12 BPC; SST 91.9 %, IMDB 92.8 % after transfer
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train

config = Config(
    out="runs/radford_4096",
    model=Model(hidden=4096, embedding=64),
    data=Data(corpus="corpora/amazon", batch=128, window=256),
    # The rate decays to zero over the epoch.
    optimizer=Optimizer(learning_rate=5e-4, decay_steps=None, clip_norm=None),
    precision=Precision(compute="fp32"),
    train=Train(epochs=1, log_every=50, eval_every=10_000, checkpoint_every=2000),
)
