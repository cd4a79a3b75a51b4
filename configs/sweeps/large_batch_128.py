r"""Batch size against learning-rate scaling on a CPU: Puri et al. 2018, Fig. 5, at small scale.

Corpus:    an eighth of 72 MB of Amazon and IMDB reviews, 8.7 MB:
           mlstm-jax prepare amazon/*.json.gz imdb/unsup.jsonl.gz \
             --split 120,3,877 --dedupe exact --out corpora/reviews_small
Command:   mlstm-jax sweep large_batch_128 --out runs/large_batch_128
Hardware:  two CPU cores, about one and a half minutes per run
Found:     results/large_batch_128/, notebooks/large_batch.ipynb

All runs read the text once. The rules start from 4e-3 at 16 rows, a quarter of the best rate there
(rates_at_16_rows.csv); the paper's start from 5e-4 at 128, a sixth of its final rate. "16e-3" uses
that best rate at every batch size. LEGW warms up over 40 updates at 16 rows; an epoch of 512 rows
is shorter, with a warm-up of 29. LAMB warms up over 20 updates and uses square-root scaling; its
rate is not comparable with Adam's, so LAMB is also run from its best rate at 16 rows, 16e-3.
Micro-batches only serve to measure the noise scale.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Train, vary

base = Config(
    model=Model(hidden=128, embedding=64),
    data=Data(corpus="corpora/reviews_small", window=64),
    optimizer=Optimizer(learning_rate=4e-3, base_batch=16, clip_norm=1.0),
    train=Train(epochs=1.0),
)
lamb = {
    "optimizer__name": "lamb",
    "optimizer__scaling": "sqrt",
    "optimizer__warmup_steps": 20,
    "optimizer__eps": 1e-6,
    "optimizer__weight_decay": 0.01,
}
rules = {
    "linear": {"optimizer__scaling": "linear"},
    "sqrt": {"optimizer__scaling": "sqrt"},
    "4e-3": {},
    "16e-3": {"optimizer__learning_rate": 16e-3},
    "LEGW": {"optimizer__scaling": "legw", "optimizer__warmup_epochs": 40 / 8167},
    "LAMB": lamb,
    "LAMB, 16e-3": lamb | {"optimizer__learning_rate": 16e-3},
}
runs = {
    (str(batch), name): vary(
        base,
        data__batch=batch,
        train__micro_batches=max(2, batch // 32),
        train__log_every=2048 // batch,
        train__eval_every=16384 // batch,
        train__checkpoint_every=16384 // batch,
        **rule,
    )
    for batch in (16, 64, 128, 256, 512)
    for name, rule in rules.items()
    # At the base batch some rules are identical.
    if batch > 16 or name not in ("linear", "sqrt")
}
