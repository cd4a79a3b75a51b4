"""The comparison with NVIDIA's own code: 512-d on IMDB reviews, 1,200 steps.

Corpus:    mlstm-jax prepare unsup.jsonl.gz --split 99,1,0 --dedupe exact --out corpora/imdb
           (the 50,000 unlabelled reviews of Maas et al. 2011: 49,507 documents)
Command:   mlstm-jax train reference_512
Hardware:  two CPU cores: 6 to 12 kB/s, 7 to 13 minutes
Expected:  validation 2.033 BPC
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train

config = Config(
    out="runs/reference_512",
    model=Model(hidden=512, embedding=64),
    data=Data(corpus="corpora/imdb", batch=32, window=128),
    optimizer=Optimizer(learning_rate=2e-3, clip_norm=1.0),
    precision=Precision(compute="fp32"),
    train=Train(steps=1200, epochs=None, log_every=20, eval_every=400, checkpoint_every=200),
)
