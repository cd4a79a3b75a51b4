"""The first part of the model that comes with the package, `reviews-768`: two hours on one core.

Corpus:    98 MB: the train split of small_512's corpus, and 20,000 of the labelled reviews of IMDB;
           results/reviews_768/texts.py writes them
Command:   mlstm-jax train reviews_768
Hardware:  one CPU core with AMX
Expected:  validation 1.520 BPC after 75 MB (results/reviews_768/)

3.4 million parameters, 6.8 MB as float16; reviews_768_continued.py trains them further. It also
predicts a review's stars from the state at the review's end, an auxiliary objective that the paper
leaves to future work.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train

config = Config(
    out="runs/reviews_768",
    model=Model(hidden=768, embedding=64, rating_head=True),
    data=Data(corpus="corpora/reviews_768", batch=128, window=128, shards=1024),
    optimizer=Optimizer(
        name="muon",
        learning_rate=16e-3,
        muon_learning_rate=0.12,
        muon_momentum=0.9,
        muon_steps=3,
        weight_decay=0.01,
        weight_decay_bytes=65_536,
        clip_norm=1.0,
        warmup_steps=20,
    ),
    precision=Precision(compute="bf16"),
    train=Train(steps=4600, epochs=None, log_every=20, eval_every=230, checkpoint_every=230),
)
