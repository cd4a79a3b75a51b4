r"""BERT on bytes, in minutes on a CPU: 2 x 128-d, with the two parts of BERT-Large's recipe.

Corpus:    mlstm-jax prepare reviews.jsonl.gz --out corpora/reviews --split 400,1,1 --dedupe exact
Command:   mlstm-jax sweep bert_tiny_recipe --out runs/bert_tiny_recipe
Hardware:  one CPU core with AVX512_BF16, about seven minutes with the second part
Expected:  3.05 bits per masked byte on validation text after 5.3 MB of reviews, after both parts

As in bert_large.py 15% of the bytes are masked, the gradient is divided by its norm, and nine of
ten updates have windows of 128 bytes, the others of 512 (bert_tiny_long): the later positions are
trained in the second part only. But the optimizer is AdamW: in 500 updates LAMB had 3.55 bits at
4e-3, its best rate, 4.07 at half of it and 4.10 at twice, little better than the frequencies of the
bytes. Both sides of a masked byte are known, so its bits do not compare with a language model's.
"""

from mlstm_jax.config import BERT, Config, Data, Optimizer, Precision, Train

config = Config(
    out="runs/bert_tiny",
    model=BERT(hidden=128, embedding=128, layers=2, heads=2, positions=512, embedding_std=0.02),
    data=Data(corpus="corpora/reviews", batch=64, window=128),
    optimizer=Optimizer(
        name="adamw",
        learning_rate=2e-3,
        eps=1e-6,
        clip_norm=1.0,
        weight_decay=0.01,
        schedule="polynomial",
        power=0.5,
        warmup_steps=142,
        decay_steps=500,  # with the second part, which goes on with this decay
    ),
    precision=Precision(compute="bf16"),
    train=Train(steps=450, epochs=None, micro_batches=2, eval_every=125, checkpoint_every=125),
)
