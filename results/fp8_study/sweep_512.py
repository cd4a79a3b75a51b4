"""bf16, and fp8 in the recurrent products: 512 units, 24.6 MB, the setting of small_512.

Corpus:    that of ../small_512
Command:   mlstm-jax sweep results/fp8_study/sweep_512.py --out runs/fp8_512
Hardware:  one CPU core, 20 minutes (AVX512_BF16) to two hours a run; fp8 is emulated
Criterion: fp8 within 0.005 BPC of bf16, or within the spread of the seeds (set before the runs)
Found:     README.md beside this file; runs.csv
"""

from mlstm_jax.config import load_file, vary

base = vary(
    load_file("small_512"),
    train__steps=3000,
    train__epochs=None,
    train__eval_every=250,
    precision__compute="bf16",
)
runs = {
    (recurrent, f"seed {seed}"): vary(base, precision__recurrent=recurrent, train__seed=seed)
    for seed in (0, 1, 2)
    for recurrent in ("fp8_emulated", "compute")
}
