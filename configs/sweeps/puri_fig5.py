"""Batch size against learning-rate scaling, one epoch: Puri et al. 2018, section IX-A and Fig. 5.

Corpus:    as amazon_4096
Command:   mlstm-jax sweep puri_fig5 --out runs/puri_fig5
Hardware:  8 to 128 V100 (the paper's), 256 rows each
Expected:  test BPC of the paper, by batch:
           2048   linear 1.280   sqrt 1.117   5e-4 1.130   3e-3 1.110
           4096   linear 1.275   sqrt 1.122   5e-4 1.146   3e-3 1.119
           8192   linear 1.476   sqrt 1.133   5e-4 1.175   3e-3 1.132
           16384  linear Div     sqrt Div     5e-4 1.254   3e-3 1.162
           32768  linear Div     sqrt Div     5e-4 1.380   3e-3 1.218
           LEGW and LAMB are not in the paper, so they have no expected value.
"""

from mlstm_jax.config import load_file, vary

base = vary(
    load_file("amazon_4096"),
    optimizer__learning_rate=5e-4,
    train__steps=None,
    train__epochs=1.0,
    data__batch_per_device=None,
)
rules = {
    "linear": {"optimizer__scaling": "linear"},
    "sqrt": {"optimizer__scaling": "sqrt"},
    "5e-4": {},
    "3e-3": {"optimizer__learning_rate": 3e-3},
    # You et al. 2019: 1,000 updates of warm-up at any batch size.
    "LEGW": {"optimizer__scaling": "legw", "optimizer__warmup_epochs": 1000 / 1_184_000},
    # You et al. 2020: square-root scaling, a warm-up, and the β₂, ε and decay of their section 4.
    "LAMB": {
        "optimizer__name": "lamb",
        "optimizer__scaling": "sqrt",
        "optimizer__warmup_steps": 200,
        "optimizer__eps": 1e-6,
        "optimizer__weight_decay": 0.01,
    },
}
runs = {
    (str(batch), name): vary(base, data__batch=batch, **rule)
    for batch in (2048, 4096, 8192, 16384, 32768)
    for name, rule in rules.items()
}
