"""The two parts of bert_tiny's recipe, one after the other: short windows, then long ones.

Corpus:    that of bert_tiny
Command:   mlstm-jax sweep bert_tiny_recipe --out runs/bert_tiny_recipe
Hardware:  see bert_tiny
"""

from mlstm_jax.config import load_file

runs = {
    ("bert_tiny", "short windows"): load_file("bert_tiny"),
    ("bert_tiny", "long windows"): load_file("bert_tiny_long"),
}
