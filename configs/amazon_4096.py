"""The paper's 4096-d model: Puri et al. 2018, section VIII and Fig. 6.

Corpus:    mlstm-jax prepare aggressive_dedup.json.gz --out corpora/amazon   (82 million reviews)
Command:   mlstm-jax train amazon_4096
Hardware:  8 GPUs or more, 256 rows each; training stops after 100,000 steps, which on one GPU is a
           sixth of an epoch (see `mlstm-jax plan`). `prepare` works out of core,
           see docs/data.md.
           8 V100 (the paper's): batch 2048, 100k steps, 1.4 epochs, 23.7 hours.
           128 V100 (the paper's): batch 32,768, 14k steps, 3 epochs, 3.5 hours.
Expected:  1.102 BPC at batch 2048, 1.132 at 32,768
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train

config = Config(
    out="runs/amazon_4096",
    model=Model(hidden=4096, embedding=64),
    data=Data(corpus="corpora/amazon", batch_per_device=256, window=256),
    # Paper: the rate decays to zero over 100,000 steps; here over the run, also of a small corpus.
    optimizer=Optimizer(learning_rate=3e-3, clip_norm=1.0),
    # Paper: fp16 with loss scaling, on GPUs without bf16 (--precision.compute fp16).
    precision=Precision(compute="bf16"),
    train=Train(steps=100_000, epochs=3, log_every=50, eval_every=5000, checkpoint_every=1000),
)
