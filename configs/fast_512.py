"""The speed run: small_512.py in bf16, to the score that Adam has, in a quarter of the time.

Corpus:    as small_512
Command:   mlstm-jax train fast_512
Hardware:  two CPU cores with AVX512_BF16
Expected:  validation 1.692 to 1.700 BPC after 12.8 MB (results/fast_512/)
"""

from mlstm_jax.config import load_file, vary

config = vary(
    load_file("small_512"),
    out="runs/fast_512",
    precision__compute="bf16",
    train__steps=1560,
    train__epochs=None,
    train__eval_every=260,
    train__checkpoint_every=260,
)
