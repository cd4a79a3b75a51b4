"""Measure the speed of text features against the bare forward pass of the same model.

    python benchmarks/features.py --hidden 512 --texts reviews.jsonl.gz --json results.json

The forward pass reads windows of a full batch, without padding, sorting or cleaning; features do
all of these. Both run in one process, in turn. Without --texts the texts are random, with the
lengths of reviews. With --run the model is a trained one. The features of some texts are also
compared over orders and batches.
"""

import argparse
import resource
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from measure import machine, write_results

from mlstm_jax.config import Config, Model
from mlstm_jax.corpora.documents import clean
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.parallel import Parallel
from mlstm_jax.run import Run, load_run
from mlstm_jax.transfer.features import Featurizer, TextFile
from mlstm_jax.transfer.windows import ROWS

_WINDOW = 128


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=512, help="units of an untrained model")
    parser.add_argument("--run", type=Path, help="run folder of a trained model")
    parser.add_argument("--compared", type=int, default=256, help="number of texts to compare")
    parser.add_argument("--texts", type=Path, help="texts in any format that `prepare` reads")
    parser.add_argument("--count", type=int, default=2000, help="number of texts to use")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here")
    return parser.parse_args()


def make_texts(count: int) -> list[str]:
    """Return texts with the lengths of reviews: log-normal, with a median of about a kilobyte."""
    random = np.random.default_rng(0)
    words = ["good", "bad", "film", "guitar", "the", "a", "was", "never", "again", "and"]
    lengths = np.clip(random.lognormal(6.8, 0.7, count), 50, 12_000).astype(int)
    return [" ".join(random.choice(words, length // 5)) for length in lengths]


def invariance(run: Run, texts: list[str]) -> dict[str, float]:
    """Return the largest difference of any feature under changes that must not matter."""
    wanted = Featurizer(run)(texts)
    other = np.random.default_rng(0).permutation(len(texts))
    largest = {"features": float(np.abs(wanted).max()), "deviation": float(wanted.std(0).mean())}

    def compare(name: str, found: np.ndarray) -> None:
        largest[name] = float(np.abs(found - wanted).max())

    compare("another order", Featurizer(run)([texts[n] for n in other])[np.argsort(other)])
    compare(
        "a call a text",
        np.concatenate([Featurizer(run)([text]) for text in texts[:16]] + [wanted[16:]]),
    )
    for rows in (1, 8, 100):
        compare(f"{rows} rows a batch", Featurizer(run, rows=rows)(texts))
    return largest


def main() -> None:
    """Measure, print and write."""
    arguments = parse_arguments()
    if arguments.texts:
        texts = []
        for part in TextFile(arguments.texts, None, "none"):
            texts += part
            if len(texts) >= arguments.count:
                break
        texts = texts[: arguments.count]
    else:
        texts = make_texts(arguments.count)
    if arguments.run:
        run = load_run(arguments.run)
    else:
        config = Config(model=Model(hidden=arguments.hidden))
        model = LanguageModel(config.model, config.precision.types)
        params = jax.device_get(jax.jit(model.init_parameters)(jax.random.key(0)))
        run = Run(Path("none"), config, 0, "radford", model, params)
    model, params = run.model, run.params
    # On one device, as the bare forward pass.
    read = Featurizer(run, devices=Parallel(jax.local_devices()[:1]))
    size = sum(len(clean(text, run.cleaning)) for text in texts)
    rows = ROWS[-1]
    windows = max(1, size // (rows * _WINDOW))

    @jax.jit
    def forward(params, carry, bytes_BT):
        return model.apply({"params": params}, bytes_BT, carry).carry

    on_device = jax.device_put(params)
    window_BT = np.random.default_rng(0).integers(32, 127, (rows, _WINDOW), dtype=np.uint8)
    zero = jax.tree.map(jnp.asarray, model.init_carry(rows))

    def bare() -> float:
        carry, started = zero, time.perf_counter()
        for _ in range(windows):
            carry = forward(on_device, carry, window_BT)
        jax.block_until_ready(carry)
        return windows * rows * _WINDOW / (time.perf_counter() - started)

    def own_rate() -> float:
        started = time.perf_counter()
        read(texts)
        return size / (time.perf_counter() - started)

    forward(on_device, zero, window_BT)
    read(texts)  # Other numbers of rows have programs of their own.
    rates = [(own_rate(), bare()) for _ in range(arguments.rounds)]
    own, other = (statistics.median(column) for column in zip(*rates, strict=True))
    ratio = statistics.median(a / b for a, b in rates)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    results = {
        "hidden": run.config.model.hidden,
        "texts": len(texts),
        "bytes": size,
        "texts_per_s": own * len(texts) / size,
        "bytes_per_s": own,
        "forward_bytes_per_s": other,
        "fraction_of_forward": ratio,
        "fractions": [a / b for a, b in rates],
        "peak_rss_bytes": peak,
        "largest_differences": invariance(run, texts[: arguments.compared]),
    }
    print(
        f"{len(texts):,} texts, {size / 1e6:.1f} MB, {run.config.model.hidden}-d on "
        f"{machine()['device']}: {results['texts_per_s']:.0f} texts/s, {own / 1e3:.1f} kB/s; bare "
        f"forward {other / 1e3:.1f} kB/s; ratio {ratio:.2f}; peak {peak / 1e9:.2f} GB"
    )
    if arguments.json:
        write_results(arguments.json, "features", **results)


if __name__ == "__main__":
    main()
