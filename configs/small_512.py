"""A full run for one GPU, or slowly on a CPU: 512-d on tens of megabytes of reviews.

Corpus:    mlstm-jax prepare reviews.jsonl.gz --out corpora/reviews --split 400,1,1 --dedupe exact
Command:   mlstm-jax train small_512
Hardware:  two CPU cores: 12 kB/s
Expected:  validation 1.704 BPC after 6,000 steps on 72 MB of Amazon and IMDB reviews (README);
           1.748 with rate 2e-3
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Train

config = Config(
    out="runs/small_512",
    model=Model(hidden=512, embedding=64),
    data=Data(corpus="corpora/reviews", batch=32, window=128),
    optimizer=Optimizer(learning_rate=8e-3, clip_norm=1.0),
    train=Train(epochs=1, log_every=20, eval_every=500, checkpoint_every=250),
)
