"""The options of commands and functions, and the words that they choose from.

They need neither NumPy nor JAX, so that the help of a command is fast. corpora/options.py has the
options of `prepare`.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from mlstm_jax.errors import nearest, require
from mlstm_jax.fields import Between, Checked, Count, Fraction, Positive, Seed

SplitName = Literal["train", "valid", "test"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
Cleaning = Literal["radford", "none"]
Dedupe = Literal["exact", "normalized", "none"]
Unit = Literal["line", "paragraph", "file"]
Quoting = Literal["yes", "no"]
Compute = Literal["fp32", "tf32", "bf16", "fp16"]
JaxCompute = Literal["auto", Compute]
ReadingCompute = Literal[JaxCompute, "int8"]
ReadingLibrary = Literal["auto", "numpy", "jax"]
# c and h after the last byte, or the mean (Alley et al. 2019) or maximum of h over all bytes.
State = Literal["c", "h", "mean_h", "max_h"]
# The features of a text: one state, or several side by side.
FeatureState = Literal[State, "c+mean_h", "h+mean_h+max_h"]


class NumberTypes(NamedTuple):
    """The types that a model computes with."""

    compute: Compute = "fp32"  # operand type of the matrix products
    cell: Literal["fp32", "compute"] = "fp32"  # type of the cell state c


class OptimizerKind(NamedTuple):
    """What a config must know of an optimizer; training/optimizer.py builds it by its name."""

    moments: int  # numbers that it keeps for each parameter of a large matrix
    fields: tuple[str, ...]  # of `Optimizer`, which not every optimizer has


_ADAM = ("b1", "b2", "b2_half_life", "eps")
_DECAY = ("weight_decay", "weight_decay_bytes")
_MUON = ("muon_learning_rate", "muon_momentum", "muon_decoder", "muon_steps")
OPTIMIZERS = {
    "adam": OptimizerKind(2, _ADAM),
    "adamw": OptimizerKind(2, (*_ADAM, *_DECAY)),
    "lamb": OptimizerKind(2, (*_ADAM, *_DECAY)),
    "lars": OptimizerKind(1, ("b1", *_DECAY, "trust_coefficient")),
    # The parameters that are no matrices have Adam.
    "muon": OptimizerKind(1, (*_ADAM, *_DECAY, *_MUON)),
}

# Fields of configs of earlier versions by their dotted names, and what each is called now, in its
# section.
RENAMED: dict[str, str] = {}

# What other programs call an option or a field.
_ELSEWHERE = {
    "units": "hidden",
    "lr": "learning_rate",
    "iterations": "steps",
    "steps": "epochs",
    "batch_size": "batch",
    "length": "bytes",
    "tokens": "bytes",
    "max_tokens": "bytes",
    "max_new_tokens": "bytes",
    "output": "out",
    "force": "overwrite",
}


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config, or of sections of one, with the names that their fields have now."""
    values = dict(values)
    for name, part in values.items():
        if isinstance(part, Mapping):
            values[name] = dict(part)  # so that the caller's stays as it is
    for old, new in RENAMED.items():
        section, _, name = old.rpartition(".")
        part = values.get(section) if section else values
        if isinstance(part, dict) and name in part:
            part[new.rpartition(".")[2]] = part.pop(name)
    return values


def names_meant(name: str, known: Collection[str]) -> list[str]:
    """At most two known options or fields that an unknown name may mean."""
    section, _, last = name.rpartition(".")
    for usual in (last, _ELSEWHERE.get(last)):
        found = [one for one in known if one.rpartition(".")[2] == usual]
        if found:
            return found[:2]
    inside = [one for one in known if one.startswith(f"{section}.")]
    full = {one.rpartition(".")[2]: one for one in inside or known}
    begin = last.rstrip("s")
    longer = [word for word in full if word.startswith(begin) and len(begin) > 2]
    alike = longer or nearest(last, full)
    return [full[word] for word in alike[:2]]


@dataclass(frozen=True, kw_only=True)
class CsvOptions(Checked):
    """How to read tables such as .csv files, where their first lines do not show it.

    Attributes:
        delimiter: the character between the fields of a table such as .csv, for example ; or \\t, a
            tab; unset: as its suffix says, or another one with which the header has a text column.
        quoting: whether the fields of a table may be in quotes: yes or no; unset: yes unless tabs
            separate them, and with tabs if the file shows it.
    """

    delimiter: str | None = None
    quoting: Quoting | None = None

    def __post_init__(self) -> None:
        if self.delimiter == "\\t":
            object.__setattr__(self, "delimiter", "\t")
        super().__post_init__()
        one = "," if self.delimiter is None else self.delimiter
        rule = "one character, no quote, space or line end; or \\t"
        require(len(one) == 1 and one not in '\r\n" ', "delimiter", self.delimiter, rule)


CSV = CsvOptions()

_MOST_DRAWN = 2**31 - 1  # bytes; the place of each is an int32 of the device
_LARGEST = 3.4e38  # about as much as float32 has


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(Checked):
    """How to generate text.

    Attributes:
        bytes: maximum number of bytes to draw for each text.
        samples: number of texts; all are in memory at once, of less than 2 GiB together.
        temperature: 1 samples the model's own distribution; lower values favour likely bytes; 0
            takes the most likely byte.
        top_k: draw only from the k most likely bytes.
        top_p: draw only from the fewest bytes whose total probability is at least this.
        seed: the same seed gives the same text.
        set_unit: units of the top layer's cell state, and the value each is held at (Radford et
            al. 2017, section 4.3).
        stop: a byte that ends a text and is no part of it, as a character or as \\n, \\x02; a
            review ends at \\n.

    Examples:
        >>> options = mlstm.SamplingOptions(bytes=20, temperature=0.5)
        >>> text = mlstm.load("sentiment").generate("The film", options)
    """

    bytes: Annotated[int, Between(0, _MOST_DRAWN)] = 400
    samples: Annotated[int, Between(1, 1000)] = 1
    temperature: Annotated[float, Between(0, 1e6)] = 0.7  # JAX flushes what is denormal to 0
    top_k: Count | None = None
    top_p: Annotated[float, Between(0, 1, "(]")] | None = None
    seed: Seed = 0
    set_unit: Mapping[int, float] | None = None
    stop: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = _MOST_DRAWN // self.samples
        require(self.bytes <= longest, "bytes", self.bytes, f"0 to {longest:,} in each sample")
        for unit, value in (self.set_unit or {}).items():
            require(abs(value) <= _LARGEST, f"set_unit {unit}", value, "finite in float32")
        byte_of(self.stop)


def byte_of(stop: str) -> bytes:
    """The byte of a character or an escape sequence; b"" for an empty text."""
    code = b"??"
    with suppress(UnicodeError):
        code = stop.encode("ascii")
        if len(code) > 1:
            code = code.decode("unicode_escape").encode("latin-1")
    rule = "a single byte: a character of ASCII, or an escape like \\n or \\x02"
    require(len(code) < 2, "stop", stop, rule)
    return code


@dataclass(frozen=True, kw_only=True)
class HeatmapOptions(Checked):
    """What a heat map shows of a unit or of a score.

    Attributes:
        label: the class whose score is shown; unset: the last, such as positive.
        state: what a unit shows: c or h after each character, or mean_h, the mean of h up to it;
            unset: c, or h of a model that has no c.
        layer: the unit's layer; 0 is the lowest; unset: the top layer.
        scale: the absolute value with the full colour; unset: the 99th percentile of the text, or
            of a score its largest value after a whole word.

    Examples:
        >>> options = mlstm.HeatmapOptions(state="h")
        >>> heat = mlstm.load("sentiment").heatmap("It was good.", 236, options=options)
    """

    label: str | None = None
    state: State | None = None
    layer: int | None = None
    scale: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class TransferOptions(Checked):
    """How to fit a classifier to the features of a frozen model.

    Attributes:
        state: c, the cell state, or h after the last byte; or mean_h, the mean of h over all bytes;
            or c+mean_h, first all of c and then all of mean_h; or several of these, all read in one
            pass over the texts. Unset: c+mean_h, or mean_h of a model without a c; of `sentiment`
            h+mean_h+max_h, which its own classifier reads.
        all_layers: use every layer, the lowest first; otherwise only the top one.
        words: the classifier reads the features or the words (TF-IDF), whichever is better on
            held-out texts, or the mean of both if that is clearly better than either. It has no
            score after each character.

    Examples:
        >>> options = mlstm.TransferOptions(state="mean_h", words=True)
        >>> made = mlstm.load("runs/mine").transfer("reviews.csv", options=options)
    """

    state: tuple[FeatureState, ...] | FeatureState | None = None
    all_layers: bool = False
    words: bool = False

    @property
    def states(self) -> tuple[FeatureState, ...] | None:
        """The states, also if there is only one."""
        return (self.state,) if isinstance(self.state, str) else self.state


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Checked):
    """How to fine-tune a model.

    Attributes:
        epochs: passes over the training texts.
        learning_rate: peak rate, reached after a tenth of the steps; it then falls to a 32nd.
        label_weight: how many bytes of the language model's loss one label counts as.
        batch: rows in the global batch; unset: 32, or with few texts fewer, so that an epoch has
            about 40 updates or more.
        window: bytes of truncated back-propagation; a Transformer's is always `model.positions`.
        dropout: fraction of the units of each layer's output that are dropped.
        seed: the seed of dropout and of the order of the text.
        compute: type of the matrix products; unset: as in the run, and with a model of the
            package or an imported one the fastest, as `precision.compute` of a new run.
        words: take the probabilities of the model or of TF-IDF, whichever is better on the
            validation texts, or their mean if that is clearly better than either.

    Examples:
        >>> mlstm.FinetuneOptions(epochs=5).batch is None
        True
    """

    epochs: Positive = 3.0
    learning_rate: Positive = 1e-3
    label_weight: Positive = 1000.0
    batch: Count | None = None
    window: Count = 128
    dropout: Fraction = 0.2
    seed: Seed = 0
    compute: Compute | None = None
    words: bool = False


SAMPLING = SamplingOptions()
HEATMAP = HeatmapOptions()
TRANSFER = TransferOptions()
FINETUNE = FinetuneOptions()
