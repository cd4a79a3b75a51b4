"""The run of reference_512.py with Muon, as in small_512.py.

Corpus:    as reference_512
Command:   mlstm-jax train tuned_512
Hardware:  one CPU core, 10 to 16 minutes
Expected:  validation 1.763 BPC (results/tuned_512/), where Adam has 2.033 with NVIDIA's rate
           and 1.906 with the best rate tried
"""

from mlstm_jax.config import load_file, vary

config = vary(
    load_file("reference_512"),
    out="runs/tuned_512",
    optimizer=load_file("small_512").optimizer,
)
