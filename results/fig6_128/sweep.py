r"""Puri et al. 2018, Fig. 6, at small scale: batches of 16 to 1,024 rows, one decay in updates.

Corpus:    4.5 MB of reviews of musical instruments (McAuley et al. 2015):
           mlstm-jax prepare reviews_Musical_Instruments_5.json.gz --split 20,1,1 \
             --dedupe exact --out corpora/instruments_large
Command:   mlstm-jax sweep results/fig6_128/sweep.py --out runs/fig6_128
Hardware:  one core of an AMD EPYC with AVX2, about five minutes a run

The paper trains for at most three epochs with a rate that falls linearly to zero over 100,000
updates, whatever the batch: 2,048 rows end by the decay after 1.4 epochs, 32,768 rows after 14,000
updates. Here three epochs of 32 rows are about DECAY updates, so that 16 rows end by the decay
after half of the text, and all larger batches by the text. "Adam" has one rate at every batch, as
in the paper: the best at 16 rows (batch_rates_128). "Adam, 3e-3" has the paper's rate. "Muon" has
the rates of batch_table_128.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train, vary

DECAY = 6_600
ALL_BYTES = DECAY * 32 * 64  # three epochs

base = Config(
    model=Model(hidden=128, embedding=64),
    data=Data(corpus="corpora/instruments_large", window=64),
    optimizer=Optimizer(
        learning_rate=16e-3, base_batch=16, clip_norm=1.0, warmup_steps=20, decay_steps=DECAY
    ),
    precision=Precision(compute="fp32"),
    train=Train(steps=DECAY, epochs=3.0, log_every=8),
)
rules = {
    "Adam": {},
    "Muon": {
        "optimizer__name": "muon",
        "optimizer__muon_learning_rate": 0.128,
        "optimizer__b2_half_life": 709_783.0,
    },
    "Adam, 3e-3": {"optimizer__learning_rate": 3e-3},
}
runs = {
    (str(batch), name): vary(
        base,
        data__batch=batch,
        train__micro_batches=max(2, batch // 128),
        # Twelve evaluations in three epochs.
        train__eval_every=ALL_BYTES // 64 // batch // 12,
        train__checkpoint_every=ALL_BYTES // 64 // batch // 12,
        **rule,
    )
    for name, rule in rules.items()
    for batch in (1024, 256, 64, 32, 16)
}
