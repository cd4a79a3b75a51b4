"""A small model on Python's own documentation, two minutes; the default of `mlstm-jax train`.

Command:   mlstm-jax quickstart, or make quickstart in a clone
Hardware:  two CPU cores, about two minutes
Expected:  validation 1.56 BPC after 400 steps, on the documentation of Python 3.11
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Train

config = Config(
    out="runs/quickstart",
    model=Model(hidden=256, recurrent_init="orthogonal"),
    data=Data(corpus="corpora/quickstart", batch=32, window=128),
    # Adam with 4e-3, 1,200 steps of 16 rows, ended 0.15 bits higher (results/quickstart).
    optimizer=Optimizer(
        name="muon",
        learning_rate=16e-3,
        muon_learning_rate=0.12,
        muon_momentum=0.9,
        muon_steps=3,
        weight_decay=0.1,
    ),
    train=Train(steps=400, epochs=None, eval_every=100, checkpoint_every=100),
)
