r"""LEGW as in its paper: many epochs of a small text, 1 to 64 times the batch, no retuning.

Corpus:    2.0 MB of reviews of musical instruments (McAuley et al. 2015):
           mlstm-jax prepare reviews_Musical_Instruments_5.json.gz --split 20,4,26 \
             --dedupe exact --out corpora/instruments
Command:   mlstm-jax sweep results/legw_128/sweep.py --out runs/legw_128
Hardware:  CPU cores with AVX512_BF16, five minutes per run on each

You et al. 2019: for k times the batch, √k times the rate and k times the epochs of warm-up, without
retuning. The rate at 16 rows, 16e-3, is the best of batch_rates_128, and the warm-up is a tenth
of an epoch. At 64 times the batch, the warm-up takes 6.4 of the 20 epochs, and a run makes 620
updates. "sqrt" and "linear" warm up for a tenth of an epoch at any batch size. Muon has the same
rates and 20 updates of warm-up at any batch size; its rate is the best of batch_rates_128, too.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train, vary

base = Config(
    model=Model(hidden=128, embedding=64),
    data=Data(corpus="corpora/instruments", window=64),
    optimizer=Optimizer(learning_rate=16e-3, base_batch=16, clip_norm=1.0, warmup_epochs=0.1),
    precision=Precision(compute="bf16"),
    train=Train(epochs=20.0),
)
rules = {
    "LEGW": {"optimizer__scaling": "legw"},
    "sqrt": {"optimizer__scaling": "sqrt"},
    "linear": {"optimizer__scaling": "linear"},
    "Muon": {
        "optimizer__name": "muon",
        "optimizer__muon_learning_rate": 0.128,
        "optimizer__b2_half_life": 709_783.0,
        "optimizer__warmup_steps": 20,
        "optimizer__warmup_epochs": None,
    },
}
runs = {
    (str(16 * k), name): vary(
        base,
        data__batch=16 * k,
        train__micro_batches=max(2, k // 8),
        train__log_every=max(1, 128 // k),
        # Once an epoch.
        train__eval_every=1914 // k,
        train__checkpoint_every=1914 // k,
        **rule,
    )
    # The extremes first.
    for k in (64, 1, 16, 4)
    for name, rule in rules.items()
    # At the base batch some rules are identical.
    if k > 1 or name in ("LEGW", "Muon")
}
