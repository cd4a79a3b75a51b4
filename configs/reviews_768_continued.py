"""The second part of the model that comes with the package, `reviews-768`: 150 MB more.

Corpus:    that of reviews_768.py
Command:   mlstm-jax train reviews_768_continued
Hardware:  one CPU core with AVX512_BF16: three hours
Expected:  validation 1.458 BPC, test 1.436 (results/reviews_768/continued/)

It starts from the parameters of reviews_768.py with fresh moments, at three quarters of that run's
rates, with windows of 256 bytes, and reads the text in another order.
"""

from mlstm_jax.config import load_file, vary

config = vary(
    load_file("reviews_768"),
    out="runs/reviews_768_continued",
    data__window=256,
    data__shuffle_shards=True,
    data__seed=1,
    optimizer__learning_rate=12e-3,
    optimizer__muon_learning_rate=0.09,
    optimizer__warmup_steps=50,
    train__start_from="runs/reviews_768",
    train__seed=1,
    train__log_every=23,
    train__eval_every=115,
    train__checkpoint_every=115,
)
