"""The second part of BERT-Large's recipe: long windows, from the state that bert_large ends with.

Corpus:    that of bert_large
Command:   mlstm-jax sweep bert_large_recipe --out runs/bert_large_recipe
Hardware:  see bert_large
Expected:  not known; it was not run
"""

from mlstm_jax.config import load_file, vary

first = load_file("bert_large")
config = vary(
    first,
    out="runs/bert_large_long",
    data__batch=32768,
    data__window=512,
    optimizer__learning_rate=4e-3,
    optimizer__warmup_steps=200,  # 12.8%
    train__steps=1563,
    train__start_from=first.out,
    train__start_optimizer=True,
)
