"""The model that comes with the package, `reviews-1024`: seven minutes on one H100.

Corpus:    98 MB: the train split of small_512's corpus, and 20,000 of the labelled reviews of IMDB;
           results/reviews_1024/texts.py writes them
Command:   mlstm-jax train reviews_1024
Hardware:  one NVIDIA H100: 403 s for 1.6 GB, 16.5 passes over the text
Expected:  validation 1.366 BPC, test 1.349 (results/reviews_1024/)

5.9 million parameters, 11.7 MB as float16. It also predicts a review's stars from the state at the
review's end, an auxiliary objective that the paper leaves to future work.
"""

from mlstm_jax.config import Config, Data, Devices, Model, Optimizer, Precision, Train

config = Config(
    out="runs/reviews_1024",
    model=Model(hidden=1024, embedding=64, rating_head=True),
    data=Data(
        corpus="corpora/reviews_1024", batch=256, window=256, shards=1024, shuffle_shards=True
    ),
    optimizer=Optimizer(
        name="muon",
        learning_rate=10e-3,
        b2=0.99,
        muon_learning_rate=0.12,
        muon_decoder=True,
        weight_decay=4 / (0.12 * 25_000),
        warmup_steps=100,
    ),
    devices=Devices(kernels="pallas"),
    precision=Precision(compute="bf16"),
    train=Train(
        steps=25_000,
        epochs=None,
        dropout=0.1,
        log_every=100,
        eval_every=2500,
        checkpoint_every=2500,
    ),
)
