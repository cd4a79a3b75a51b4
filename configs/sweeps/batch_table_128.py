r"""How far the batch can grow: 16 to 1,024 rows on equal text, with several scaling rules.

Corpus:    72 MB of Amazon and IMDB reviews:
           mlstm-jax prepare amazon/*.json.gz imdb/unsup.jsonl.gz --split 400,1,1 \
             --dedupe exact --out corpora/reviews
Command:   mlstm-jax sweep batch_table_128 --out runs/batch_table_128
Hardware:  CPU cores, about 20 minutes per run on each

Each run reads 98 MB, so 1,024 rows make 1,500 updates. Each rule starts from its best rate at 16
rows and scales it for larger batches. b2 0.999 is the paper's; "half-life" keeps its half-life
constant in bytes of text, as at 16 rows. Micro-batches only serve to measure the noise scale. This
sweep has not been run yet.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Train, vary

BYTES = 1500 * 1024 * 64
HALF_LIFE = 709_783.0  # bytes: half-life of 0.999 at 16 rows of 64

base = Config(
    model=Model(hidden=128, embedding=64),
    data=Data(corpus="corpora/reviews", window=64),
    optimizer=Optimizer(learning_rate=16e-3, base_batch=16, clip_norm=1.0, warmup_steps=20),
    train=Train(steps=1500, epochs=None),
)
half_life = {"optimizer__b2_half_life": HALF_LIFE}
muon = half_life | {"optimizer__name": "muon", "optimizer__muon_learning_rate": 0.032}
rules = {
    "Adam": {},
    "Adam, half-life": half_life,
    "Adam, sqrt": {"optimizer__scaling": "sqrt"},
    "Adam, sqrt, half-life": half_life | {"optimizer__scaling": "sqrt"},
    "LEGW": {
        "optimizer__scaling": "legw",
        "optimizer__warmup_steps": 0,
        # 20 updates at any batch size.
        "optimizer__warmup_epochs": 20 * 16 * 64 / 72e6,
    },
    "LAMB": {
        "optimizer__name": "lamb",
        "optimizer__scaling": "sqrt",
        "optimizer__eps": 1e-6,
        "optimizer__weight_decay": 0.01,
    },
    "Muon": muon,
    "Muon, sqrt": muon | {"optimizer__scaling": "sqrt"},
}


def at(batch: int, **rule: object) -> Config:
    """Return the run of `batch` rows on BYTES of text, with eight evaluations."""
    steps = BYTES // (batch * 64)
    return vary(
        base,
        data__batch=batch,
        train__steps=steps,
        train__micro_batches=max(2, batch // 32),
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
    # At the base batch some rules are identical.
    if batch > 16 or name in ("Adam", "LAMB", "Muon")
}
