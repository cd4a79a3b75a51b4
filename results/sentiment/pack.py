"""Make the package's model `sentiment` of a model of train.py.

    python results/sentiment/pack.py DATA RUN/model.npz TEMPERATURE SEED [SEED ...]

The parameters are their exponential mean over the last updates, in int8. The head becomes the
model's own classifier: its scores are divided by the temperature that evaluate.py chose on
validation texts. The classifier's file has digests of the training texts of 40 bytes or more with a
label; rated_texts.npy is the file of `reviews-1024`, from which the training began.
"""

import dataclasses
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import texts

import train
from mlstm_jax import shipped, weights
from mlstm_jax.arrays import fingerprint
from mlstm_jax.config import Config, to_json
from mlstm_jax.transfer.classifier import Classifier, Description, DomainLimit
from mlstm_jax.transfer.known import digest_of
from mlstm_jax.weights import ModelWeights, load_weights

LEAST = 40  # bytes
NAME = "sentiment"
FAMILIAR = DomainLimit(bits=3.0, short=8.0)  # unlike.py


def digests_of_training(data: Path, seeds: list[int]) -> np.ndarray:
    """Return the digests of the seeds' labelled training texts of 40 bytes or more."""
    found = set()
    for seed in seeds:
        some: list[texts.Text] = []
        for part in train.TEXTS:
            some += part(data, 1_000 * seed)
        cleaned = train.RUN.cleaned([text.text for text in some if text.source != "negation"])
        found |= {digest_of(text) for text in cleaned if len(text) >= LEAST}
    return np.array(sorted(found), np.uint32)


def main(data: Path, path: Path, temperature: float, seeds: list[int]) -> None:
    """Write models/sentiment."""
    like = train.start()
    params = train.load(path, {"last": like, "mean": like})["mean"]
    model = dataclasses.replace(train.RUN.config.model, rating_head=False, classes=0)
    out = shipped.MODELS / NAME
    out.mkdir(exist_ok=True)
    source = "mlstm_jax, results/sentiment, from reviews-1024"
    imported = ModelWeights(model, "radford", params["model"], source)
    weights.save(out / "weights.safetensors", imported, "int8")
    (out / "config.json").write_text(to_json(Config(out="model", model=model)) + "\n")
    stored = load_weights(out / "weights.safetensors").params
    about = Description("h+mean_h+max_h", False, fingerprint(stored), None, FAMILIAR, step=0)
    known = digests_of_training(data, seeds)
    classifier = Classifier(
        np.asarray(params["kernel"], np.float64).T / temperature,
        np.asarray(params["bias"], np.float64) / temperature,
        list(texts.CLASSES),
        math.inf,
        softmax=True,
        texts=known,
        about=about,
    )
    (out / "sentiment").mkdir(exist_ok=True)
    classifier.save(out / "sentiment")
    for name in ("rated_texts.npy", "example.txt"):
        shutil.copy(shipped.MODELS / "reviews-1024" / name, out / name)
    print(f"{len(known):,} texts; {sum(f.stat().st_size for f in out.rglob('*.*')):,} bytes")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        float(sys.argv[3]),
        [int(seed) for seed in sys.argv[4:]],
    )
