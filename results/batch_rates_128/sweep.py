r"""Search for the best rates at 16 and 256 rows, for batch_table_128, on a quarter of its text.

Corpus:    that of ../batch_table_128
Command:   mlstm-jax sweep results/batch_rates_128/sweep.py --out runs/batch_rates_128
Hardware:  CPU cores with AVX512_BF16, three to six minutes per run on each
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train, vary

BYTES = 1500 * 256 * 64
HALF_LIFE = 709_783.0  # bytes: half-life of 0.999 at 16 rows of 64

base = Config(
    model=Model(hidden=128, embedding=64),
    data=Data(corpus="corpora/reviews", window=64),
    optimizer=Optimizer(learning_rate=16e-3, clip_norm=1.0, warmup_steps=20),
    precision=Precision(compute="bf16"),
    train=Train(steps=1500, epochs=None),
)
half_life = {"optimizer__b2_half_life": HALF_LIFE}
lamb = {"optimizer__name": "lamb", "optimizer__eps": 1e-6, "optimizer__weight_decay": 0.01}
muon = half_life | {"optimizer__name": "muon"}


def at(batch: int, **fields: object) -> Config:
    """Return the run of `batch` rows on BYTES of text."""
    steps = BYTES // (batch * 64)
    return vary(
        base,
        data__batch=batch,
        train__steps=steps,
        train__micro_batches=max(2, batch // 128),
        train__log_every=max(1, 2048 // batch),
        train__eval_every=steps // 4,
        train__checkpoint_every=steps // 4,
        **fields,
    )


runs = {}
for rate in (16e-3, 8e-3, 32e-3):
    runs["16", f"Adam, {rate:g}"] = at(16, optimizer__learning_rate=rate)
for rate in (0.064, 0.032, 0.016, 0.128, 0.256):
    runs["16", f"Muon, {rate:g}"] = at(16, optimizer__muon_learning_rate=rate, **muon)
for rate in (16e-3, 8e-3, 32e-3, 4e-3):
    runs["16", f"LAMB, {rate:g}"] = at(16, optimizer__learning_rate=rate, **lamb)
for rate in (0.064, 0.128, 0.256, 0.032):
    runs["256", f"Muon, {rate:g}"] = at(256, optimizer__muon_learning_rate=rate, **muon)
for rate in (32e-3, 16e-3, 64e-3):
    runs["256", f"Adam, half-life, {rate:g}"] = at(256, optimizer__learning_rate=rate, **half_life)
for rate in (32e-3, 16e-3, 64e-3):
    runs["256", f"Adam, {rate:g}"] = at(256, optimizer__learning_rate=rate)
for rate in (32e-3, 64e-3, 16e-3):
    runs["256", f"LAMB, {rate:g}"] = at(256, optimizer__learning_rate=rate, **lamb)
