"""The config that needs no data: Python's own documentation, a small model, two minutes.

`mlstm-jax quickstart` uses it, and so does `mlstm-jax train` without a CONFIG.
"""

import os
import shutil
import sys
from pathlib import Path

from mlstm_jax.config import Config, Data, Model, Optimizer, Train
from mlstm_jax.corpora.prepare import prepare

config = Config(
    out="runs/quickstart",
    model=Model(hidden=256, recurrent_init="orthogonal"),
    data=Data(corpus="corpora/quickstart", batch=32, window=128),
    # Adam with 4e-3, 1,200 steps of 16 rows, ended 0.2 bits higher (results/quickstart).
    optimizer=Optimizer(
        name="muon",
        learning_rate=16e-3,
        muon_learning_rate=0.12,
        muon_momentum=0.9,
        muon_steps=3,
        weight_decay=0.1,
    ),
    train=Train(steps=600, epochs=None, eval_every=100, checkpoint_every=100),
)

# One paragraph in twenty for validation and one for test: the default, 1 in 1,000, is too little.
SPLIT = (18, 1, 1)


def prepare_corpus() -> None:
    """Create the corpus unless it exists."""
    folder = Path(config.data.corpus)
    if not folder.exists():
        prepare(["pydoc:"], folder, split=SPLIT)


def next_steps(run: Path) -> str:
    """Return commands for a new user to try next."""
    command = _command()
    return f"""What to try next:
  {command} generate {run} --prompt "The object" --bytes 300
  {command} evaluate {run} --split test
A larger model of reviews, which comes with the package, on a local page (extra "view"):
  {command} view
Your own text, one document per line (or .csv, .jsonl, .gz of each):
  {command} prepare reviews.csv --out corpora/mine
  {command} train small_512 --data.corpus corpora/mine --out runs/mine"""


def _command() -> str:
    """Return the command to type: `mlstm-jax` if it is on the PATH, otherwise its path."""
    beside = Path(sys.executable).with_name("mlstm-jax")
    if shutil.which("mlstm-jax") or not beside.exists():
        return "mlstm-jax"
    return os.path.relpath(beside)
