r"""fp32, bf16 and fp16 on the same text, batches and seed: Puri et al. 2018, section V and Fig. 2.

Corpus:    an eighth of 72 MB of Amazon and IMDB reviews, 8.0 MB:
           mlstm-jax prepare amazon/*.json.gz imdb/unsup.jsonl.gz \
             --split 120,3,877 --dedupe exact --out corpora/reviews_small
Command:   mlstm-jax sweep results/precision_128/sweep.py --out runs/precision_128
Hardware:  two CPU cores, two to six minutes per run
Found:     results/precision_128/, notebooks/precision.ipynb
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Train, vary

base = Config(
    model=Model(hidden=128, embedding=64),
    data=Data(corpus="corpora/reviews_small", batch=64, window=64),
    optimizer=Optimizer(learning_rate=8e-3, clip_norm=1.0),
    train=Train(epochs=1.0, log_every=32, eval_every=256, checkpoint_every=256),
)
runs = {
    (compute, f"seed {seed}"): vary(base, precision__compute=compute, train__seed=seed)
    for compute in ("fp32", "bf16", "fp16")
    for seed in (0, 1)
}
