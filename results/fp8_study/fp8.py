r"""Train with fp8 operands in the four recurrent products, emulated on a CPU, compared with bf16.

    mlstm-jax prepare amazon/*.json.gz imdb/unsup.jsonl.gz --split 120,3,877 --dedupe exact \
      --out corpora/reviews_small
    cd results/fp8_study
    python fp8.py --corpus ../../corpora/reviews_small --out runs --arms bf16 e4m3 e5m2 \
      --steps 800 --eval-every 400
    python fp8.py --corpus ../../corpora/reviews_small --out runs --hidden 512 --batch 32 \
      --steps 200 --eval-every 200 --learning-rate 2e-3

The model, the training and evaluation steps, the optimizer and the batches are the package's; the
recurrence is that of fp8_recurrence.py. Each run writes one JSON file at its end; a run
whose file exists is skipped. README.md has the results.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from fp8_recurrence import BF16, E4M3, E5M2, FATES, TENSORS, Formats, Fp8Model, Scaling

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, Train
from mlstm_jax.data.corpus import Corpus, open_corpus
from mlstm_jax.data.stream import prefetch
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.training import optimizer, parallel, schedule
from mlstm_jax.training.evaluation import Evaluator
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.phases import resolve_phases, segments
from mlstm_jax.training.state import fresh_state
from mlstm_jax.training.step import make_train_step

ARMS = {
    "bf16": Formats(BF16, BF16),
    "e4m3": Formats(E4M3, E4M3),
    "e5m2": Formats(E4M3, E5M2),
}


def beside_scaling(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return an optimizer of all parameters except "scaling", which is set to its "gradient"."""

    def without(tree: Any) -> Any:
        return {name: x for name, x in tree.items() if name != "scaling"}

    def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, state = inner.update(without(gradient), state, without(params))
        change = jax.tree.map(lambda new, old: new - old, gradient["scaling"], params["scaling"])
        return {**updates, "scaling": change}, state

    return optax.GradientTransformation(lambda params: inner.init(without(params)), update)


def seen_between(before: Scaling, after: Scaling, updates: int) -> dict[str, Any]:
    """Return the newest maxima, and the mean fractions of affected values since `before`."""
    fractions = (after.fates - before.fates) / max(updates, 1)
    return {
        tensor: {
            "maximum": float(after.maxima[0, n]),
            "history_maximum": float(after.maxima[:, n].max()),
        }
        | {fate: float(fractions[k, n]) for k, fate in enumerate(FATES)}
        for n, tensor in enumerate(TENSORS)
    }


def run(config: Config, corpus: Corpus, arm: str) -> dict[str, Any]:
    """Train, score every `eval_every` updates, and return the results."""
    devices = Parallel(jax.local_devices()[:1])
    plain = LanguageModel(config.model, config.precision)
    # These replace the package's model; they have everything that the steps use.
    model: Any = Fp8Model(plain, ARMS[arm])
    in_bf16: Any = Fp8Model(plain, ARMS["bf16"])
    parts = resolve_phases(config, corpus)
    (part,), (rate,) = parts, schedule.rates(config.optimizer, segments(parts))
    tx = beside_scaling(optimizer.build(config.optimizer, config.model, rate))
    step = devices.map(make_train_step(config, model, tx, rate, parallel.AXIS), donate=(0, 1))
    valid = corpus.split("valid")
    score = Evaluator(model, valid, config.data.window, devices)
    state = devices.replicate(fresh_state(config, model, tx, None))
    carry = devices.split_rows(model.init_carry(config.data.batch))
    go_on = devices.replicate(np.float32(0))
    seen, curve, losses = devices.unreplicate(state.params["scaling"]), [], []
    for n, batch in enumerate(prefetch(part.stream.batch, range(part.last))):
        state, carry, metrics = step(state, carry, devices.split_rows(batch), go_on)
        losses.append(metrics.loss)
        done = n + 1
        if done % config.train.eval_every and done != part.last:
            continue
        now = devices.unreplicate(state.params["scaling"])
        curve.append(
            {
                "step": done,
                "bytes": part.stream.bytes_seen(done),
                "train_bpc": float(np.mean([devices.unreplicate(x) for x in losses]) / np.log(2)),
                "valid_bpc": score(state.params).bpc,
                "skipped": int(devices.unreplicate(metrics.skipped)),
                "tensors": seen_between(seen, now, len(losses)),
            }
        )
        print(f"{arm} seed {config.train.seed} {json.dumps(curve[-1])}", flush=True)
        seen, losses = now, []
    result = {"bpc": curve[-1]["valid_bpc"]}
    if arm != "bf16":
        result["bpc_evaluated_in_bf16"] = Evaluator(in_bf16, valid, config.data.window, devices)(
            state.params
        ).bpc
    return result | {"curve": curve}


def table(folder: Path) -> str:
    """Return the last validation BPC of all runs, and the difference of each arm from bf16."""
    made = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    bpc = {(one["hidden"], one["seed"], one["arm"]): one["bpc"] for one in made}
    lines = []
    for hidden, seed, arm in sorted(
        bpc, key=lambda key: (key[0], list(ARMS).index(key[2]), key[1])
    ):
        line = f"{hidden} units, {arm}, seed {seed}: {bpc[hidden, seed, arm]:.4f}"
        if arm != "bf16" and (hidden, seed, "bf16") in bpc:
            line += f" ({bpc[hidden, seed, arm] - bpc[hidden, seed, 'bf16']:+.4f})"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    """Run the requested runs that have no results yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", required=True, help="folder that `mlstm-jax prepare` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for one JSON file per run")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["bf16", "e4m3"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--hidden", type=int, default=128, help="units")
    parser.add_argument("--batch", type=int, default=64, help="rows")
    parser.add_argument("--window", type=int, default=64, help="bytes per row and update")
    parser.add_argument("--steps", type=int, help="updates; unset: one epoch")
    parser.add_argument("--learning-rate", type=float, default=8e-3)
    parser.add_argument("--eval-every", type=int, default=256, help="updates between evaluations")
    given = parser.parse_args()
    corpus = open_corpus(Path(given.corpus))
    given.out.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        for arm in given.arms:
            path = given.out / f"{given.hidden}_{arm}_seed{seed}.json"
            if path.exists():
                continue
            config = Config(
                model=Model(hidden=given.hidden, embedding=64),
                data=Data(corpus=given.corpus, batch=given.batch, window=given.window),
                optimizer=Optimizer(learning_rate=given.learning_rate, clip_norm=1.0),
                precision=Precision(compute="bf16"),
                train=Train(seed=seed, steps=given.steps, epochs=None if given.steps else 1.0),
            )
            train = dataclasses.replace(config.train, eval_every=given.eval_every)
            config = dataclasses.replace(config, train=train)
            about = {
                "arm": arm,
                "seed": seed,
                "hidden": given.hidden,
                "batch": given.batch,
                "window": given.window,
                "learning_rate": given.learning_rate,
                "clip_norm": 1.0,
                "corpus": corpus.identity,
                "jax": jax.__version__,
            }
            made = about | run(config, corpus, arm)
            unfinished = path.with_suffix(".part")
            unfinished.write_text(json.dumps(made, indent=1) + "\n")
            unfinished.rename(path)
    print(table(given.out))


if __name__ == "__main__":
    main()
