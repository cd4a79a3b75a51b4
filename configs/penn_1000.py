r"""Penn Treebank by characters (Mikolov et al. 2012), 5 MB: one layer of 1,000 units.

Corpus:    the usual splits, with the spaces between characters taken out and `_` for a space:
               for s in train valid test; do
                 tr -d ' ' < ptb.char.$s.txt | tr _ ' ' > $s.txt
               done
           mlstm-jax prepare --train train.txt --valid valid.txt --test test.txt --clean none \
               --document file --out corpora/penn
Command:   mlstm-jax train penn_1000
Hardware:  one GPU, or slowly a CPU
Expected:  we have not run it; the settings are those of shakespeare.py for a larger text. Published
           on the test part: 1.175 BPC by the AWD-LSTM of three layers (Merity et al. 2018)
"""

from mlstm_jax.config import load_file, vary

config = vary(
    load_file("shakespeare"),
    out="runs/penn_1000",
    model__hidden=1000,
    data__corpus="corpora/penn",
    train__epochs=20,
    train__dropout=0.4,
    train__eval_every=1223,
    train__checkpoint_every=1223,
)
