r"""Tiny Shakespeare with nanoGPT's split, 1.1 MB: what everybody can measure, in minutes on a CPU.

Corpus:    input.txt of nanoGPT, 1,115,394 bytes; its last tenth is for validation:
               head -c 1003854 input.txt > train.txt
               tail -c 111540 input.txt > valid.txt
           mlstm-jax prepare --train train.txt --valid valid.txt --clean none --document file \
               --out corpora/shakespeare
Command:   mlstm-jax train shakespeare
Hardware:  one CPU core with AVX512_BF16: six minutes
Expected:  validation 1.438 to 1.449 nats, 2.07 to 2.09 BPC (results/shakespeare/); nanoGPT has
           published 1.4697 nats, and 1.88 of its setting for a CPU; 82 updates have 1.80
"""

from mlstm_jax.config import load_file, vary

config = vary(
    load_file("small_512"),
    out="runs/shakespeare",
    model__hidden=256,
    data__corpus="corpora/shakespeare",
    data__batch=32,
    data__window=128,
    data__shards=32,
    precision__compute="bf16",
    train__epochs=8,
    train__dropout=0.3,
    train__log_every=41,
    train__eval_every=246,
    train__checkpoint_every=246,
)
