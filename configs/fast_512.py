"""The speed run: the model of small_512.py to the same score in a third of the time.

Corpus:    as small_512
Command:   mlstm-jax train fast_512
Hardware:  two CPU cores with AVX512_BF16
Expected:  validation 1.694 BPC after 12.8 MB (results/fast_512/)

What it changes: Muon with a momentum of 0.9 and three steps of Newton-Schulz; Adam's rate for the
other parameters doubled; bf16; four times the rows, half the window.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train

config = Config(
    out="runs/fast_512",
    model=Model(hidden=512, embedding=64),
    data=Data(corpus="corpora/reviews", batch=128, window=64, shards=1024),
    optimizer=Optimizer(
        name="muon",
        learning_rate=16e-3,
        muon_learning_rate=0.12,
        muon_momentum=0.9,
        muon_steps=3,
        clip_norm=1.0,
        warmup_steps=20,
    ),
    precision=Precision(compute="bf16"),
    train=Train(steps=1560, epochs=None, log_every=32, eval_every=260, checkpoint_every=260),
)
