r"""BERT-Large on bytes, with the recipe that trained it in 47 minutes; compiled for H100, not run.

Corpus:    mlstm-jax prepare amazon/*.json.gz --out corpora/amazon_exact --dedupe exact
Command:   mlstm-jax sweep bert_large_recipe --out runs/bert_large_recipe
Hardware:  8 H100 of 80 GB: 13 hours with the second part by `mlstm-jax plan` at the rate that an
           mLSTM's step reached, 18 by XLA's own model of the compiled steps; nothing is measured
Expected:  not known; it was not run

24 layers of 1024 units and 16 heads (Devlin et al. 2018). NVIDIA's recipe (You et al. 2020): LAMB
with the gradient divided by its norm; 7,038 updates of 65,536 windows of 128, then 1,563 of 32,768
windows of 512 (bert_large_long); in each part warm-up and a decay of power 0.5; dropout 0.1; decay
0.01.
"""

from mlstm_jax.config import BERT, Config, Data, Optimizer, Precision, Train

config = Config(
    out="runs/bert_large",
    model=BERT(hidden=1024, embedding=1024, layers=24, heads=16, positions=512, embedding_std=0.02),
    data=Data(corpus="corpora/amazon_exact", batch=65536, window=128),
    optimizer=Optimizer(
        name="lamb",
        learning_rate=6e-3,
        eps=1e-6,
        clip_norm=1.0,
        weight_decay=0.01,
        schedule="polynomial",
        power=0.5,
        warmup_steps=2000,  # 28.43%
    ),
    precision=Precision(compute="bf16"),
    train=Train(
        steps=7038,
        epochs=None,
        dropout=0.1,
        micro_batches=128,
        log_every=1,
        eval_every=200,
        checkpoint_every=100,
    ),
)
