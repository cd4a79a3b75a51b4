r"""BERT on bytes, in minutes on a CPU: 2 x 128-d, with the recipe of BERT-Large.

Corpus:    mlstm-jax prepare reviews.jsonl.gz --out corpora/reviews --split 400,1,1 --dedupe exact
Command:   mlstm-jax train bert_tiny

The recipe is NVIDIA's for BERT-Large (bert_large.py): 15% of the bytes are masked, LAMB with the
gradient divided by its norm, nine of ten updates with windows of 128 bytes, then windows of 512.
The later positions are trained in the second phase only. The figure of an evaluation is bits per
masked byte: both sides of it are known, so it does not compare with a language model's.
"""

from mlstm_jax.config import BERT, Config, Data, Optimizer, Phase, Precision, Train

config = Config(
    out="runs/bert_tiny",
    model=BERT(hidden=128, embedding=128, layers=2, heads=2, positions=512, embedding_std=0.02),
    data=Data(corpus="corpora/reviews", batch=64, window=128),
    optimizer=Optimizer(
        name="lamb",
        learning_rate=16e-3,
        eps=1e-6,
        clip_norm=1.0,
        weight_decay=0.01,
        schedule="polynomial",
        power=0.5,
        warmup_steps=142,
    ),
    precision=Precision(compute="bf16"),
    train=Train(steps=500, epochs=None, micro_batches=2, eval_every=125, checkpoint_every=125),
    phases=(Phase(steps=450, batch=64, window=128), Phase(steps=50, batch=64, window=512)),
)
