"""Larger models: Puri et al. 2018, section VIII-A and Fig. 4.

Corpus:    as amazon_4096
Command:   mlstm-jax sweep puri_fig4 --out runs/puri_fig4
Hardware:  one node of 8 V100 (the paper's); 8192-d with 96 rows per GPU because of its memory
Expected:  BPC after one epoch: 4096-d 1.117 (Fig. 2), 8192-d 1.038; 256-d and 1024-d about 1.64 and
           1.34, read from the figure
"""

from mlstm_jax.config import load_file, vary

base = vary(
    load_file("amazon_4096"),
    train__steps=None,
    train__epochs=1.0,
    data__batch_per_device=None,
)
runs = {
    (f"{hidden}-d", "one epoch"): vary(
        base, model__hidden=hidden, data__batch=batch, optimizer__learning_rate=rate
    )
    for hidden, batch, rate in (
        (256, 2048, 2e-3),
        (1024, 2048, 2e-3),
        (4096, 2048, 2e-3),
        # The paper gives 7.8e-4 for 768 rows, and says that this is square-root scaling.
        (8192, 768, 7.8e-4),
    )
}
