"""Effect of initialisation and learning rate, varied in the run of reference_512.py.

Corpus:    as reference_512
Command:   mlstm-jax sweep results/initialisation_128/sweep_512.py --out runs/initialisation_512
Hardware:  two CPU cores, about six minutes per run
"""

from mlstm_jax.config import load_file, vary

base = load_file("reference_512")

rates = {"2e-3": 2e-3, "4e-3": 4e-3, "8e-3": 8e-3}
starts = {
    "paper": {},
    "orthogonal": {"model__recurrent_init": "orthogonal"},
    "orthogonal, embedding 2": {
        "model__recurrent_init": "orthogonal",
        "model__embedding_std": 2.0,
    },
}
runs = {
    (start, rate): vary(base, optimizer__learning_rate=value, **fields)
    for start, fields in starts.items()
    for rate, value in rates.items()
}
