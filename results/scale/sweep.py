r"""What do more units, and more text, gain? The recipe of the former `reviews-768` at four sizes.

Corpus:    that of reviews_1024.py
Command:   mlstm-jax sweep results/scale/sweep.py --out runs/scale
Hardware:  CPU cores with AVX512_BF16: on one core 98 MB take 12 minutes with 128 units, 24 with
           256 and 61 with 512; 49 MB take 64 with 768
Expected:  validation 1.834, 1.675, 1.558 and 1.556 BPC (results/scale/)

512 units with 98 MB and 768 with 49 MB take the same time, and end at the same loss.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train, vary

base = Config(
    model=Model(embedding=64, rating_head=True),
    data=Data(corpus="corpora/reviews_1024", batch=128, window=128, shards=1024),
    optimizer=Optimizer(
        name="muon",
        learning_rate=16e-3,
        muon_learning_rate=0.12,
        muon_momentum=0.9,
        muon_steps=3,
        weight_decay=0.01,
        weight_decay_bytes=65_536,
        warmup_steps=20,
    ),
    precision=Precision(compute="bf16"),
    train=Train(steps=6000, epochs=None, log_every=20),
)
UPDATES = {"49 MB": 3000, "98 MB": 6000}
# The slowest first.
runs = {
    (text, str(units)): vary(
        base,
        model__hidden=units,
        train__steps=UPDATES[text],
        train__eval_every=UPDATES[text] // 20,
        train__checkpoint_every=UPDATES[text] // 20,
    )
    for text, units in (("98 MB", 512), ("49 MB", 768), ("98 MB", 256), ("98 MB", 128))
}
