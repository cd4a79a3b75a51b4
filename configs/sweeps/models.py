r"""mLSTM, LSTM, GRU and causal Transformer of equal size on equal text.

Corpus:    that of results/batch_table_128
Command:   mlstm-jax sweep models --out runs/models
Hardware:  CPU cores with AVX512_BF16, on each 2 to 13 minutes per run of 0.5 M parameters, and
           10 to 30 of 2 M

Every run reads 6.1 MB in 750 updates of 32 windows of 256 bytes, with the optimizer of
small_512.py and three rates of Muon. The models have 0.5 and 2.0 million parameters, within 5%. All
compute in bf16, the faster type on such a core. The mLSTM has weight normalisation; so have LSTM
and GRU, which are better with it, but for those called "plain".
"""

from mlstm_jax.config import (
    GRU,
    LSTM,
    Config,
    Data,
    Model,
    Precision,
    Train,
    Transformer,
    load_file,
    vary,
)
from mlstm_jax.model.architecture import Architecture

base = Config(
    data=Data(corpus="corpora/reviews", batch=32, window=256),
    optimizer=load_file("small_512").optimizer,
    precision=Precision(compute="bf16"),
    train=Train(epochs=None, steps=750, micro_batches=2, eval_every=125, checkpoint_every=125),
)
# Of Muon, and of Adam for what Muon does not train.
RECURRENT, ATTENTION = ((0.06, 0.12, 0.24), 16e-3), ((0.015, 0.03, 0.06), 4e-3)
PLAIN = ((0.03, 0.06, 0.12), 16e-3)
models: dict[str, dict[str, tuple[Architecture, tuple[tuple[float, ...], float]]]] = {
    "0.5 M": {
        "mLSTM": (Model(hidden=256), RECURRENT),
        "LSTM": (LSTM(hidden=288, weight_norm=True), RECURRENT),
        "GRU": (GRU(hidden=332, weight_norm=True), RECURRENT),
        "LSTM, plain": (LSTM(hidden=288), PLAIN),
        "GRU, plain": (GRU(hidden=332), PLAIN),
        "Transformer": (Transformer(hidden=96, layers=4, heads=4), ATTENTION),
    },
    "2 M": {
        "mLSTM": (Model(hidden=576), RECURRENT),
        "LSTM": (LSTM(hidden=640, weight_norm=True), RECURRENT),
        "GRU": (GRU(hidden=740, weight_norm=True), RECURRENT),
        "Transformer": (Transformer(hidden=192, layers=4, heads=4), ATTENTION),
    },
}
# The best of the three rates, whose seeds follow.
BEST = {"mLSTM": 0.12, "LSTM": 0.24, "GRU": 0.24, "Transformer": 0.03}
runs = {
    (size, f"{name}, {rate:g}"): vary(
        base,
        model=model,
        optimizer__muon_learning_rate=rate,
        optimizer__learning_rate=others,
    )
    for size, kinds in models.items()
    for name, (model, (rates, others)) in kinds.items()
    for rate in rates
}
runs |= {
    ("0.5 M", f"{name}, {rate:g}, seed {seed}"): vary(
        runs["0.5 M", f"{name}, {rate:g}"], train__seed=seed, data__seed=seed
    )
    for name, rate in BEST.items()
    for seed in (1, 2)
}
