r"""BERT's large-batch recipe on the mLSTM, complete and without each of its parts.

Corpus:    that of ../batch_table_128
Command:   mlstm-jax sweep results/bert_recipe_128/sweep.py --out runs/bert_recipe_128
Hardware:  CPU cores with AVX512_BF16, four minutes per run on each

NVIDIA's recipe for BERT (You et al. 2020): LAMB with the gradient clipped to norm 1; 90% of the
updates with short windows, 10% with windows four times as long; 28% of the updates warm-up, then a
decay of power 0.5; decoupled weight decay; each update accumulated over micro-batches. The rate is
LAMB's best at 256 rows (batch_rates_128). Every variant reads 24.6 MB. The last one updates
after each micro-batch instead; its rate follows square-root scaling.

The recorded runs had both windows in one run, an earlier version's; here a second run goes on with
the state of the first and with what is left of its decay.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train, vary

BATCH, SHORT, LONG = 256, 64, 256
BYTES = 1500 * BATCH * SHORT
# Nine updates with short windows for each one with long windows.
TENTHS = BYTES // (BATCH * (9 * SHORT + LONG))

base = Config(
    model=Model(hidden=128, embedding=64),
    # The same division into shards for all windows.
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
)


def one_window(window: int, **fields: object) -> dict[str, object]:
    """Return the changes for a run with a single window length and the same number of bytes."""
    steps = BYTES // (BATCH * window)
    warmup = {"optimizer__warmup_steps": int(0.2843 * steps)}
    return {"data__window": window, "train__steps": steps} | warmup | fields


def in_two_parts(name: str, whole: Config) -> dict[tuple[str, str], Config]:
    """Return the short windows of a run and then the long ones, as two runs."""
    steps = whole.train.steps // 10
    decay = 10 * steps - whole.optimizer.warmup_steps
    left = (steps / decay) ** whole.optimizer.power
    seed = f"seed {whole.train.seed}"
    first = vary(
        whole, out=f"{name}, {seed}", train__steps=9 * steps, optimizer__decay_steps=10 * steps
    )
    second = vary(
        whole,
        data__window=LONG,
        optimizer__learning_rate=whole.optimizer.learning_rate * left,
        optimizer__warmup_steps=0,
        train__steps=steps,
        train__start_from=first.out,
        train__start_optimizer=True,
    )
    return {(name, f"{seed}, short"): first, (name, seed): second}


parts = {
    "the recipe": {},
    "windows of 64": one_window(SHORT),
    "windows of 256": one_window(LONG),
    "AdamW, 32e-3": {"optimizer__name": "adamw", "optimizer__learning_rate": 32e-3},
    "no clipping": {"optimizer__clip_norm": None},
    "linear decay": {"optimizer__power": 1.0},
    "warm-up of 20": {"optimizer__warmup_steps": 20},
    "no weight decay": {"optimizer__weight_decay": 0.0},
    "no accumulation": {
        "data__batch": BATCH // 8,
        "train__steps": 80 * TENTHS,
        "train__micro_batches": 1,
        "train__log_every": 64,
        "optimizer__learning_rate": 64e-3 / 8**0.5,
        "optimizer__warmup_steps": int(0.2843 * 80 * TENTHS),
    },
}
runs = {}
for seed in (0, 1, 2):
    for name, fields in parts.items():
        whole = vary(base, train__seed=seed, data__seed=seed, **fields)
        if name.startswith("windows"):
            runs[name, f"seed {seed}"] = whole
        else:
            runs |= in_two_parts(name, whole)
