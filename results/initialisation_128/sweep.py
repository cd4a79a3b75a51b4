r"""Effect of initialisation and learning rate at 128-d, over 20 MB of text, enough to converge.

Corpus:    mlstm-jax prepare amazon/*.json.gz imdb/unsup.jsonl.gz \
             --split 400,1,1 --dedupe exact --out corpora/reviews
Command:   mlstm-jax sweep results/initialisation_128/sweep.py --out runs/initialisation_128
Hardware:  two CPU cores, seven to eight minutes per run
Found:     results/initialisation_128/, notebooks/convergence.ipynb
"""

from math import sqrt

from mlstm_jax.config import Config, Data, Model, Optimizer, Train, vary

base = Config(
    model=Model(hidden=128, embedding=64),
    data=Data(corpus="corpora/reviews", batch=32, window=128),
    optimizer=Optimizer(clip_norm=1.0),
    train=Train(steps=5000, log_every=100, eval_every=1000, checkpoint_every=1000),
)
rates = {"8e-3": 8e-3, "16e-3": 16e-3}
starts = {
    "paper": {},
    "gain √3": {"model__recurrent_gain": sqrt(3)},
    "orthogonal": {"model__recurrent_init": "orthogonal"},
    "orthogonal, embedding 2": {
        "model__recurrent_init": "orthogonal",
        "model__embedding_std": 2.0,
    },
}
runs = {
    (start, rate): vary(base, optimizer__learning_rate=value, **fields)
    for start, fields in starts.items()
    for rate, value in rates.items()
    # The higher rate is better with the first two, so the others are compared at that rate.
    if rate == "16e-3" or "orthogonal" not in start
}
