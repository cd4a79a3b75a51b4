"""The run that needs nothing: Python's own documentation, a small model, two minutes.

`mlstm-jax quickstart` runs it; it is the config of `mlstm-jax train` where none is named, too.
"""

import os
import shutil
import sys
from pathlib import Path

from mlstm_jax.config import Config, Data, Model, Optimizer, Train

config = Config(
    out="runs/quickstart",
    model=Model(hidden=256, recurrent_init="orthogonal"),
    data=Data(corpus="corpora/quickstart", batch=16, window=128),
    optimizer=Optimizer(learning_rate=4e-3),
    train=Train(steps=1200, epochs=None, eval_every=200, checkpoint_every=100),
)

# One paragraph in twenty for validation, one for test: a thousandth would be too little to score.
SPLIT = (18, 1, 1)


def prepare_corpus() -> None:
    """Make the corpus, unless it is there."""
    folder = Path(config.data.corpus)
    if not folder.exists():
        from mlstm_jax.data.prepare import prepare

        prepare(["pydoc:"], folder, split=SPLIT)


def next_steps(run: Path) -> str:
    """Return what a newcomer may type next."""
    command = _command()
    return f"""What to try next:
  {command} generate {run} --prompt "The object" --length 300
  {command} evaluate {run} --split test
Your own text, a document a line (or .csv, .jsonl, .gz of each):
  {command} prepare reviews.csv --out corpora/mine
  {command} train small_512 --data.corpus corpora/mine --out runs/mine"""


def _command() -> str:
    """Return what the user can type: the command where it is on the PATH, else where it is."""
    beside = Path(sys.executable).with_name("mlstm-jax")
    if shutil.which("mlstm-jax") or not beside.exists():
        return "mlstm-jax"
    return os.path.relpath(beside)
