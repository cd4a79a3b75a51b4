r"""Krause et al. 2016, the mLSTM paper, on enwik8: one layer of 2,800 units, 46 M parameters.

Corpus:    the usual split of enwik8 (100,000,000 bytes of Wikipedia), 90, 5 and 5 million bytes:
               head -c 90000000 enwik8 > train.txt
               tail -c 10000000 enwik8 | head -c 5000000 > valid.txt
               tail -c 5000000 enwik8 > test.txt
           mlstm-jax prepare --train train.txt --valid valid.txt --test test.txt --clean none \
               --out corpora/enwik8
Command:   mlstm-jax train enwik8_2800
Hardware:  one GPU of 16 GB or more
Expected:  1.24 BPC, as published for 46 M parameters with weight normalisation and variational
           dropout. We have not run it: sizes and target are the paper's; rate, batch and dropout
           (only of the output, with a new mask for each window) are ours. Also published: 1.232 by
           the AWD-LSTM (Merity et al. 2018), 1.042 by the Mogrifier LSTM with dynamic evaluation
           (Melis et al. 2020)
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Train

config = Config(
    out="runs/enwik8_2800",
    model=Model(hidden=2800, embedding=400),
    data=Data(corpus="corpora/enwik8", batch=128, window=256, shards=128),
    optimizer=Optimizer(learning_rate=1e-3, clip_norm=1.0),
    train=Train(epochs=20, dropout=0.2, log_every=50, eval_every=2000, checkpoint_every=1000),
)
