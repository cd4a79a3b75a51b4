"""The interface of a model: all that the rest of the program knows of an architecture.

A subclass of `Architecture` is one kind of model. It is the section `model` of a config, so its
fields are the options of the command line. `LanguageModel` (language_model.py) joins its body with
what all models share: the embedding, the decoder and the label heads. Recurrent kinds derive from
`Recurrent` (stack.py), which stacks their layers.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from mlstm_jax.errors import UserError, require
from mlstm_jax.fields import Between, Positive, require_valid

Tree = Any  # of arrays

VOCABULARY = 256
Size = Annotated[int, Between(1, 2**20)]
Layers = Annotated[int, Between(1, 128)]
# What is predicted in a window, by the name of its function in training/objective.py.
ObjectiveName = Literal["next-byte", "masked-bytes"]


class LSTMCarry(NamedTuple):
    """The state of all layers between two windows: h float32 [B, L, H], c [B, L, H]; or of one.

    Rows are the first axis, so the carry of all devices is one array in the order of the streams.
    """

    h: Any
    c: Any


class Totals(NamedTuple):
    """Statistics of h over the bytes of a window that are not padding, float32 [B, L, H]."""

    sum: Any
    max: Any  # -inf where all is padding


# Also return the state after each byte, or the totals of h; both without a gradient.
StateOutput = Literal["none", "totals", "each"]


class Window(NamedTuple):
    """What the layers of a model read, and how."""

    embedding_VE: Any
    bytes_TB: Any  # int32; also other symbols of the model, see `Architecture.symbols`
    carry: Tree  # before the window, [B, ...]
    compute: Any  # operand type of every product
    padding_mask_TB: Any = None  # bool, true in the padding, where the carry does not change
    dropout_B: Any = None  # factors of units, [B, *Architecture.dropout_shape]
    states: StateOutput = "none"
    reading_weights: Any = None  # see `Architecture.reading_weights`
    recompute_every: int | None = None  # see config.Train
    loops: Any = None  # of a recurrent layer, see stack.Loops; None: the fastest of XLA
    scales_3: Any = None  # of fp8 operands of the mLSTM, see fp8.py; None: the compute type


class Products(NamedTuple):
    """What a layer multiplies for one byte of one row."""

    forward: int  # multiply-adds in each step of the loop over time
    backward: int  # multiply-adds in each step of the loop back
    others: int  # flops outside the loops, forward and backward


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a reader needs to know of a model: its sizes, its states and what it predicts.

    Attributes:
        hidden: Hidden units H of a layer. Paper: 4096 (also 256, 1024, 8192).
        embedding: Embedding size E of a byte. Paper: 64.
        layers: Stacked layers. Paper: 1.
        embedding_std: Standard deviation of the initial embedding. Paper: 1. With a small value the
            multiplicative path of an mLSTM starts almost closed.
        rating_head: Also predict a document's rating, as an auxiliary objective of the language
            model (see train.label_weight): from h at its end, or in a Transformer of masked bytes,
            such as BERT, from the mean of h in the window up to there. The corpus must have
            ratings. Paper: future work.
        classes: Number of classes to predict in the same way, from a corpus whose ratings are class
            numbers that start at 0. `mlstm-jax finetune` sets it. 0: no classes.
        objective: What the model learns to predict; `train.objective` sets it.
    """

    hidden: Size = 256
    embedding: Size = 64
    layers: Layers = 1
    embedding_std: Positive = 1.0
    rating_head: bool = False
    classes: int = 0
    objective: ObjectiveName = "next-byte"

    title: ClassVar[str] = ""
    # The states that can be shown; features use the first unless told otherwise.
    states: ClassVar[tuple[str, ...]] = ("c", "h")

    def __post_init__(self) -> None:
        require_valid(self, "model")
        fits = self.classes == 0 or (2 <= self.classes <= 2**20 and not self.rating_head)
        rule = f"0, or 2 to {2**20:,} without rating_head"
        require(fits, "model.classes", self.classes, rule)

    @property
    def cli_name(self) -> str:
        """The word that chooses this kind on a command line."""
        return f"model:{self.title.lower()}"

    @property
    def masked(self) -> bool:
        """Whether the model reads and predicts masked bytes."""
        return self.objective == "masked-bytes"

    @property
    def symbols(self) -> int:
        """The symbols that it reads: the bytes, and after them the mask."""
        return VOCABULARY + self.masked

    @property
    def bidirectional(self) -> bool:
        """Whether a byte's output depends on the bytes after it; labels are of the mean of h."""
        return False

    @property
    def labels(self) -> int:
        """The outputs K of the label head: 1 for ratings, else one for each class."""
        return self.classes or int(self.rating_head)

    @property
    def shape(self) -> tuple[int, int]:
        """The sizes [L, H] of every state."""
        return self.layers, self.hidden

    def require_next_byte(self, task: str) -> None:
        """Raise UserError if this model does not predict the next byte."""
        if self.objective != "next-byte":
            raise UserError(
                f"{task} needs a model that predicts the next byte, and this {self.cli_name} was "
                f"trained with train.objective {self.objective}; use a run with next-byte."
            )

    @property
    def longest_window(self) -> int | None:
        """The most bytes of a window, or None: any number."""
        return None


@dataclass(frozen=True, kw_only=True)
class Architecture(Sizes, ABC):
    """One kind of model; see the top of this file."""

    # By their names in a config.json and on the command line; a JSON without one: `default_kind`.
    kinds: ClassVar[dict[str, type["Architecture"]]] = {}
    default_kind: ClassVar[str] = "mlstm"

    def __init_subclass__(cls, title: str = "") -> None:
        if title:
            cls.title = title
            Architecture.kinds[title.lower()] = cls

    def init_carry(self, rows: int, cell: Any) -> Tree:
        """The carry at the start of a shard, zero, NumPy: any tree of arrays, rows first.

        `cell` is the type of c.
        """
        shape = (rows, *self.shape)
        return LSTMCarry(np.zeros(shape, np.float32), np.zeros(shape, cell))

    def for_windows(self, longest: int) -> Self:
        """The model of a run whose longest window has `longest` bytes."""
        return self

    def named_states(self, carry: Tree) -> dict[str, Any]:
        """The states of a `reading_carry` by their names in `states`, [B, L, H]."""
        states: dict[str, Any] = carry._asdict()
        return states

    def reading_carry(self, rows: int, cell: Any) -> Tree:
        """The carry at the start of a text that is read without training; see init_carry."""
        return self.init_carry(rows, cell)

    def reading_window(self, proposed: int) -> int:
        """Choose how many bytes of a text to read at a time.

        Half of the positions of the longest window hold bytes of the window before.
        """
        return proposed if self.longest_window is None else self.longest_window // 2

    def reading_weights(self, params: Tree, compute: Any, *, several_rows: bool) -> Tree:
        """Compute what all windows need of the parameters alone; None: nothing."""
        return None

    def dropout_shape(self, window: int) -> tuple[int, ...]:
        """The shape of a row's dropout mask: each unit's output to the next layer."""
        return self.shape

    @abstractmethod
    def read(self, window: Window) -> tuple[Tree, Any, Tree]:
        """Read a window, within `LanguageModel`, whose parameters the layers create.

        Returns:
            The carry after the window; the output [T, B, H] in the compute type; and by
            `window.states` None, `Totals`, or a tree for `named_states`, [B, T, L, H].
        """

    def matrices(self, name: str) -> int:
        """Count the matrices side by side in a parameter, such as layer_0/wx_v; 0: it is none.

        A label head counts as none.
        """
        return int(name == "decoder_kernel")

    def decays(self, name: str) -> bool:
        """Whether a parameter has weight decay and a trust ratio: what is counted as matrices."""
        return self.matrices(name) > 0

    @abstractmethod
    def large_parameters(self, layer: int) -> list[str]:
        """List a layer's parameters that grow large with H, in the order of their gradients."""

    @abstractmethod
    def products(self, layer: int) -> Products:
        """Count the products of a layer."""

    @abstractmethod
    def activation_bytes(
        self, units: int, window: int, every: int | None, width: int, cell: int
    ) -> int:
        """Estimate the bytes that a layer keeps for the backward pass, and needs in it.

        `units` is rows · H, `window` T, and `every` train.recompute_every; a number of the compute
        type has `width` bytes, one of c `cell`.
        """
