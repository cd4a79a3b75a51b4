"""The commands: typed functions, whose arguments are the options and whose docstring is the help.

Each calls a function of `api/`, or, where it writes results as they come, the iterator below it,
and shows the result. `train` calls the loop itself: `api.train` would load the model afterwards in
each of several processes. Messages name arguments and fields as Python does: `data.batch` is the
option --data.batch; cli.py turns `text_column` into --text-column. Here are the options that
several commands have.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from tyro.conf import FlagCreatePairsOff, Positional, arg

from mlstm_jax.options import ReadingCompute

if TYPE_CHECKING:
    from mlstm_jax.api.model import TrainedModel

T = TypeVar("T")

# The fields of an options class, as options of the command.
Flat = Annotated[T, FlagCreatePairsOff, arg(name="")]

Flag = FlagCreatePairsOff[bool]
RunFolder = Annotated[
    Path,
    Positional,
    arg(
        metavar="RUN",
        help="run folder, trained or imported, or a pretrained model, such as sentiment; or "
        "a .safetensors of `mlstm-jax export`",
    ),
]
Checkpoint = Annotated[
    str,
    arg(
        help="best (by validation bits per character; of a run of `finetune`, by the loss of the "
        "validation labels), latest, or a step"
    ),
]
Overwrite = Annotated[bool, FlagCreatePairsOff, arg(help="replace what the output path holds")]
TextColumn = Annotated[
    str | None,
    arg(help="field or column of the text; unset: text, reviewText, sentence, ..."),
]
LabelColumn = Annotated[
    str | None,
    arg(help="field or column of the label, a number or a string; unset: label"),
]


@dataclass(frozen=True)
class LoadOptions:
    """What to load of a run, and how it reads.

    Attributes:
        compute: type of the products in reading texts; auto: as in the run's config, but bf16
            instead of fp32 for several texts at a time, and for generated text, where the CPU
            multiplies it faster. int8: NumPy reads whole texts with int8 products, by onnxruntime.
    """

    checkpoint: Checkpoint = "best"
    compute: ReadingCompute = "auto"

    def load(self, run: Path) -> "TrainedModel":
        """Load the model."""
        from mlstm_jax.api.model import load

        return load(run, self.checkpoint, self.compute)


LOAD = LoadOptions()
