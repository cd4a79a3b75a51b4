"""Our entries to hour.py: mLSTM, LSTM and Transformer of this package.

python ours.py train mlstm TEXT OUT SEED
python ours.py predict OUT FILE RESULT.npy
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np

import mlstm_jax
from mlstm_jax import PrepareOptions
from mlstm_jax.config import LSTM, Config, Model, Transformer, load_file, vary

# 31 MB of text, 5.8 epochs. The size, dropout and rates were not searched on this text.
base = vary(
    load_file("small_512"),
    data__batch=32,
    data__window=128,
    data__shards=32,
    precision__compute="bf16",
    optimizer__weight_decay=0.004,
    train__epochs=None,
    train__steps=7600,
    train__dropout=0.1,
    train__log_every=38,
    train__eval_every=1900,
    train__checkpoint_every=1900,
)
CONFIGS = {
    "mlstm": vary(base, model=Model(hidden=512, embedding=64)),
    "lstm": vary(
        base,
        model=LSTM(hidden=576, embedding=64, weight_norm=True),
        optimizer__muon_learning_rate=0.24,
    ),
    "transformer": vary(
        base,
        model=Transformer(hidden=192, layers=4, heads=4),
        train__steps=3600,  # 15 MB: it takes twice the time
        train__eval_every=900,
        train__checkpoint_every=900,
        data__batch=16,
        data__window=256,
        optimizer__muon_learning_rate=0.03,
        optimizer__learning_rate=4e-3,
    ),
}
WINDOW = 1024  # bytes that are read at a time


def train(config: Config, text: Path, out: Path, seed: int) -> None:
    """Train a model and leave its parameters in OUT."""
    with TemporaryDirectory(dir=out.parent) as folder:
        corpus, run = Path(folder, "corpus"), Path(folder, "run")
        splits = {split: text / f"{split}.txt" for split in ("train", "valid")}
        mlstm_jax.prepare(splits, corpus, PrepareOptions(clean="none", document="file"))
        config = vary(config, out=str(run), data__corpus=str(corpus), train__seed=seed)
        model = mlstm_jax.train(config, owns_process=True)
        out.mkdir()
        model.export(out / "model.safetensors", dtype="float16")


def predict(out: Path, file: Path, result: Path) -> None:
    """Write the logarithms of the probabilities of each byte, after those before it."""
    module, params = mlstm_jax.load(out / "model.safetensors").flax
    window = module.architecture.reading_window(WINDOW)
    text = np.frombuffer(file.read_bytes(), np.uint8)
    rows = np.full((len(text), 256), -np.log(256), np.float32)  # nothing predicts the first

    @jax.jit
    def read(params: Any, carry: Any, bytes_BT: Any) -> Any:
        output = module.apply({"params": params}, bytes_BT, carry)
        return output.carry, jax.nn.log_softmax(output.logits_BTV[0])

    carry = module.reading_carry(1)
    for at in range(0, len(text) - 1, window):
        piece = text[at : min(at + window, len(text) - 1)]
        padded = np.pad(piece, (0, window - len(piece)))[None]
        carry, predicted_TV = read(params, carry, padded)
        rows[at + 1 : at + 1 + len(piece)] = predicted_TV[: len(piece)]
    np.save(result, rows)


def main() -> None:
    """Train or predict."""
    match sys.argv[1:]:
        case ["train", kind, text, out, seed]:
            train(CONFIGS[kind], Path(text), Path(out), int(seed))
        case ["predict", out, file, result]:
            predict(Path(out), Path(file), Path(result))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
