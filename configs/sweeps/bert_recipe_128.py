r"""BERT's large-batch recipe on the mLSTM, and without each part of it.

Corpus:    that of batch_table_128.py
Command:   mlstm-jax sweep bert_recipe_128 --out runs/bert_recipe_128
Hardware:  CPU cores with AVX512_BF16, four minutes a run on each

NVIDIA's recipe for BERT (You et al. 2020): LAMB whose gradient has norm 1 at most, 90% of the
updates with short windows and 10% with windows of four times their length, 28% of them warm-up,
then a decay of power 0.5, decoupled weight decay, each update accumulated over micro-batches. The
rate is LAMB's best at 256 rows (batch_rates_128.py). Every run reads 24.6 MB. Of the last, which
takes an update from each micro-batch instead, the rate is by the square root.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Phase, Precision, Train, vary

BATCH, SHORT, LONG = 256, 64, 256
BYTES = 1500 * BATCH * SHORT
# Nine updates of short windows to one of long ones.
TENTHS = BYTES // (BATCH * (9 * SHORT + LONG))

base = Config(
    model=Model(hidden=128, embedding=64),
    # One cut into shards for all windows.
    data=Data(corpus="corpora/reviews", batch=BATCH, window=SHORT, shards=1024),
    optimizer=Optimizer(
        name="lamb",
        learning_rate=64e-3,
        eps=1e-6,
        clip_norm=1.0,
        weight_decay=0.01,
        schedule="polynomial",
        power=0.5,
        warmup_steps=int(0.2843 * 10 * TENTHS),
    ),
    precision=Precision(compute="bf16"),
    train=Train(epochs=None, steps=10 * TENTHS, micro_batches=8, log_every=8),
    phases=(
        Phase(steps=9 * TENTHS, batch=BATCH, window=SHORT),
        Phase(steps=TENTHS, batch=BATCH, window=LONG),
    ),
)


def one_window(window: int, **fields: object) -> dict[str, object]:
    """Return the changes that make it a run of one window, of as many bytes."""
    steps = BYTES // (BATCH * window)
    warmup = {"optimizer__warmup_steps": int(0.2843 * steps)}
    return {"phases": (), "data__window": window, "train__steps": steps} | warmup | fields


parts = {
    "the recipe": {},
    "windows of 64": one_window(SHORT),
    "windows of 256": one_window(LONG),
    "AdamW, 32e-3": {"optimizer__name": "adamw", "optimizer__learning_rate": 32e-3},
    "no clipping": {"optimizer__clip_norm": None},
    "linear decay": {"optimizer__schedule": "linear"},
    "warm-up of 20": {"optimizer__warmup_steps": 20},
    "no weight decay": {"optimizer__weight_decay": 0.0},
    "no accumulation": {
        "data__batch": BATCH // 8,
        "train__steps": 80 * TENTHS,
        "train__micro_batches": 1,
        "train__log_every": 64,
        "optimizer__learning_rate": 64e-3 / 8**0.5,
        "optimizer__warmup_steps": int(0.2843 * 80 * TENTHS),
        "phases": (
            Phase(steps=72 * TENTHS, batch=BATCH // 8, window=SHORT),
            Phase(steps=8 * TENTHS, batch=BATCH // 8, window=LONG),
        ),
    },
}
runs = {
    (name, f"seed {seed}"): vary(base, train__seed=seed, data__seed=seed, **fields)
    for seed in (0, 1, 2)
    for name, fields in parts.items()
}
