r"""How far the batch can grow: 16 to 1,024 rows on equal text, with several scaling rules.

Corpus:    72 MB of Amazon and IMDB reviews:
           mlstm-jax prepare amazon/*.json.gz imdb/unsup.jsonl.gz --split 400,1,1 \
             --dedupe exact --out corpora/reviews
Command:   mlstm-jax sweep results/batch_table_128/sweep.py --out runs/batch_table_128
Hardware:  CPU cores with AVX512_BF16, 9 to 32 minutes a run on each

Each run reads 98 MB, so that 1,024 rows make 1,500 updates. A rule starts from the best rate found
for it at 16 rows (batch_rates_128); "from 256" takes the best rate found at 256 rows at all
batches. LAMB starts from 8e-3: from 16e-3 it diverges at every larger batch. "half-life": at every
batch b2 is such that the weight of a gradient has halved after the same bytes of text; at 16 rows
it is 0.999. Muon has it, too. "decay" is that of the best run with
1,024 rows in results/muon_decay_128, by bytes of text; there the rate of Adam, for what Muon does
not train, was best at 16e-3 with 16 rows and at 32e-3 with 1,024. "decoder too": Muon trains the
decoder. "Muon 0.256" has twice the rate of the other runs of Muon. With 20 updates of warm-up at
every batch, sqrt and LEGW are one rule.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train, vary

BYTES = 1500 * 1024 * 64
HALF_LIFE = 709_783.0  # bytes: half-life of 0.999 at 16 rows of 64

base = Config(
    model=Model(hidden=128, embedding=64),
    data=Data(corpus="corpora/reviews", window=64),
    optimizer=Optimizer(learning_rate=16e-3, base_batch=16, clip_norm=1.0, warmup_steps=20),
    precision=Precision(compute="bf16"),
    train=Train(steps=1500, epochs=None),
)
half_life = {"optimizer__b2_half_life": HALF_LIFE}
scalings = {
    "Adam": {},
    "Adam, linear": {"optimizer__scaling": "linear"},
    "Adam, sqrt": {"optimizer__scaling": "sqrt"},
    "LEGW": {
        "optimizer__scaling": "legw",
        "optimizer__warmup_steps": 0,
        # 20 updates at 16 rows, and so at any batch.
        "optimizer__warmup_epochs": 20 * 16 * 64 / 72e6,
    },
}
rules = {
    "Muon": half_life | {"optimizer__name": "muon", "optimizer__muon_learning_rate": 0.128},
    "Muon, decay": half_life
    | {
        "optimizer__name": "muon",
        "optimizer__muon_learning_rate": 0.128,
        "optimizer__muon_momentum": 0.9,
        "optimizer__weight_decay": 0.02,
        "optimizer__weight_decay_bytes": 65_536,
    },
    "LAMB": {
        "optimizer__name": "lamb",
        "optimizer__learning_rate": 8e-3,
        "optimizer__scaling": "sqrt",
        "optimizer__eps": 1e-6,
        "optimizer__weight_decay": 0.01,
    },
    "Adam, half-life, from 256": half_life | {"optimizer__learning_rate": 64e-3},
}
for name in ("Muon", "Muon, decay"):
    rules[f"{name}, decoder too"] = rules[name] | {"optimizer__muon_decoder": True}
for name, rule in (scalings | {"LAMB": rules["LAMB"]}).items():
    rules[name] = rule
    rules[f"{name}, half-life"] = rule | half_life
# At the batch that the rules start from they are one.
AT_16 = ("Adam", "LAMB", "Muon", "Muon, decay", "Muon, decoder too", "Muon, decay, decoder too")
# The best rules at the extremes, and how many seeds more.
LONGER = "Muon, decay, warm-up 100"
TWICE = "Muon 0.256, decay, warm-up 100"
TWICE_ALL = "Muon 0.256, decay, decoder too, warm-up 100"
SEEDED = {
    "1024": {
        TWICE: 4,
        LONGER: 4,
        TWICE_ALL: 1,
        "Muon, decay": 2,
        "LEGW, half-life": 2,
        "Muon": 2,
        "LAMB": 2,
    },
    "256": {"Muon, decay, decoder too": 1},
    "16": {"Muon, decay": 4, "Adam": 2, "Muon": 2, "LAMB": 2},
}


def at(batch: int, **rule: object) -> Config:
    """Return the run of `batch` rows on BYTES of text, with eight evaluations."""
    steps = BYTES // (batch * 64)
    return vary(
        base,
        data__batch=batch,
        train__steps=steps,
        train__micro_batches=max(2, batch // 128),
        train__log_every=max(1, 2048 // batch),
        train__eval_every=steps // 8,
        train__checkpoint_every=steps // 8,
        **rule,
    )


runs = {
    (str(batch), name): at(batch, **rule)
    # The extremes first: they show most.
    for batch in (1024, 16, 256, 64)
    for name, rule in rules.items()
    if batch > 16 or name in AT_16
}
runs["1024", "Muon, decay"] = vary(runs["1024", "Muon, decay"], optimizer__learning_rate=32e-3)
for name in ("Muon, decay", "Muon, decay, decoder too", "Muon, decoder too", "LAMB, half-life"):
    twice = {} if name.startswith("LAMB") else {"optimizer__learning_rate": 32e-3}
    runs["1024", f"{name}, warm-up 100"] = vary(
        runs["1024", name], optimizer__warmup_steps=100, **twice
    )
for name, other in ((LONGER, TWICE), ("Muon, decay, decoder too, warm-up 100", TWICE_ALL)):
    runs["1024", other] = vary(runs["1024", name], optimizer__muon_learning_rate=0.256)
runs["16", "Muon 0.256, decay"] = vary(
    runs["16", "Muon, decay"], optimizer__muon_learning_rate=0.256
)
runs |= {
    (batch, f"{name}, seed {seed}"): vary(runs[batch, name], train__seed=seed, data__seed=seed)
    for batch, names in SEEDED.items()
    for name, count in names.items()
    for seed in range(1, count + 1)
}
