r"""Schedules of the learning rate, and LARS, beside Adam with a linear decay.

Corpus:    4.5 MB of reviews of musical instruments (McAuley et al. 2015):
           mlstm-jax prepare reviews_Musical_Instruments_5.json.gz --split 20,1,1 \
             --dedupe exact --out corpora/instruments_large
Command:   mlstm-jax sweep results/schedules_128/sweep.py --out runs/schedules_128
Hardware:  one core of an AMD EPYC with AVX2

Three epochs with 64 rows of 64 bytes. Every schedule has the same peak, Adam's best at 16 rows
(batch_rates_128), and ends with the run. LARS (You et al. 2017) has momentum 0.9 and a trust
coefficient of 0.001, so that its rate is of another scale: four rates, each four times the last.
"""

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train, vary

base = Config(
    model=Model(hidden=128, embedding=64),
    data=Data(corpus="corpora/instruments_large", batch=64, window=64),
    optimizer=Optimizer(learning_rate=16e-3, base_batch=64, clip_norm=1.0, warmup_steps=20),
    precision=Precision(compute="fp32"),
    train=Train(steps=None, epochs=3.0, log_every=8, eval_every=280, checkpoint_every=280),
)
schedules = ("linear", "cosine", "triangular", "polynomial", "constant")
runs = {("Adam", schedule): vary(base, optimizer__schedule=schedule) for schedule in schedules} | {
    ("LARS", f"{rate:g}"): vary(base, optimizer__name="lars", optimizer__learning_rate=rate)
    for rate in (4.0, 16.0, 1.0, 64.0)
}
