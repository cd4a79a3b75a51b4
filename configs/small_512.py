"""A full run for one GPU, or slowly on a CPU: 512-d on tens of megabytes of reviews, with Muon.

Corpus:    mlstm-jax prepare reviews.jsonl.gz --out corpora/reviews --split 400,1,1 --dedupe exact
Command:   mlstm-jax train small_512
Hardware:  two CPU cores: 17 kB/s
Expected:  validation 1.634 BPC after 3,000 steps (25 MB) on 72 MB of Amazon and IMDB reviews, where
           Adam had 1.704 (results/small_512/)

Muon's rate is the same at any batch (docs/large_batches.md). A long run gains from a weight_decay
of 4 / (0.12 updates), a short one does not.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Train

config = Config(
    out="runs/small_512",
    model=Model(hidden=512, embedding=64),
    data=Data(corpus="corpora/reviews", batch=128, window=64, shards=1024),
    optimizer=Optimizer(
        name="muon",
        learning_rate=16e-3,
        b2_half_life=710e3,
        muon_learning_rate=0.12,
        muon_momentum=0.9,
        muon_steps=3,
        clip_norm=1.0,
        warmup_steps=20,
    ),
    train=Train(epochs=1, log_every=32, eval_every=250, checkpoint_every=250),
)
