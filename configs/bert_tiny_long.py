"""The second part of bert_tiny's recipe: long windows, from the state that bert_tiny ends with.

Corpus:    that of bert_tiny
Command:   mlstm-jax sweep bert_tiny_recipe --out runs/bert_tiny_recipe
Hardware:  see bert_tiny
Expected:  see bert_tiny
"""

from mlstm_jax.config import load_file, vary

first = load_file("bert_tiny")
config = vary(
    first,
    out="runs/bert_tiny_long",
    data__window=512,
    # The first part ends at this rate; what is left of its decay.
    optimizer__learning_rate=2e-3 * (50 / 358) ** 0.5,
    optimizer__warmup_steps=0,
    optimizer__decay_steps=None,
    train__steps=50,
    train__start_from=first.out,
    train__start_optimizer=True,
)
