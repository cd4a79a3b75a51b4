"""Mixed against single precision: Puri et al. 2018, section VII and Fig. 2.

Corpus:    as amazon_4096
Command:   mlstm-jax sweep puri_fig2 --out runs/puri_fig2
Hardware:  8 V100 (the paper's): fp32 73.8 hours, fp16 24.2, fp16 at twice the batch 17.4
Expected:  test BPC 1.104, 1.108 and 1.117 after one epoch; Radford et al. 2017, batch 128: 1.12
"""

from mlstm_jax.config import load_file, vary

base = vary(
    load_file("amazon_4096"),
    train__steps=None,
    train__epochs=1.0,
    data__batch_per_device=None,
)
# The rates are square-root scaled from 5e-4 at 128, rounded by the authors.
runs = {
    ("1024", "fp32"): vary(
        base, data__batch=1024, precision__compute="fp32", optimizer__learning_rate=1.2e-3
    ),
    ("1024", "fp16"): vary(
        base, data__batch=1024, precision__compute="fp16", optimizer__learning_rate=1.2e-3
    ),
    ("2048", "fp16"): vary(
        base, data__batch=2048, precision__compute="fp16", optimizer__learning_rate=2e-3
    ),
}
