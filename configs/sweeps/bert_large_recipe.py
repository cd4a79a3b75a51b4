"""The two parts of bert_large's recipe, one after the other: short windows, then long ones.

Corpus:    that of bert_large
Command:   mlstm-jax sweep bert_large_recipe --out runs/bert_large_recipe
Hardware:  see bert_large
"""

from mlstm_jax.config import load_file

runs = {
    ("bert_large", "short windows"): load_file("bert_large"),
    ("bert_large", "long windows"): load_file("bert_large_long"),
}
