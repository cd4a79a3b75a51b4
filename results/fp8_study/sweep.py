r"""bf16, and fp8 in the recurrent products: the same text, batches and seeds.

Corpus:    that of ../precision_128
Command:   mlstm-jax sweep results/fp8_study/sweep.py --out runs/fp8_128
Hardware:  two CPU cores, one to three minutes a run; fp8 is emulated
Found:     README.md beside this file; runs.csv
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train, vary

base = Config(
    model=Model(hidden=128, embedding=64),
    data=Data(corpus="corpora/reviews_small", batch=64, window=64),
    optimizer=Optimizer(learning_rate=8e-3, clip_norm=1.0),
    precision=Precision(compute="bf16"),
    train=Train(steps=800, epochs=None, log_every=50, eval_every=400, checkpoint_every=400),
)
runs = {
    (recurrent, f"seed {seed}"): vary(base, precision__recurrent=recurrent, train__seed=seed)
    for seed in (0, 1, 2)
    for recurrent in ("compute", "fp8_emulated")
}
