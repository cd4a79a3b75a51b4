"""Answer the page's requests: one model reads or continues a text."""

import reprlib
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from mlstm_jax.corpora.documents import clean, is_broken, prompt_bytes
from mlstm_jax.errors import UserError, require
from mlstm_jax.fields import Between, require_kind
from mlstm_jax.loaded import Loaded
from mlstm_jax.options import SamplingOptions, State
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.transfer.features import state_of
from mlstm_jax.transfer.heatmap import characters, running_score
from mlstm_jax.transfer.trace import Tracer, as_text, generate, go_on

MOST_BYTES = 20_000  # of a text
_MOST_GENERATED = 2000
_SHOWN = 8  # active units, and next bytes

# The placeholder text of the empty page.
_EXAMPLE = "This guitar strap is"


class RequestError(UserError):
    """A request is refused with another status than 400; its sender is shown the message."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Viewer:
    """Answers the page's requests, several at a time; an error that `check` raises ends one."""

    def __init__(
        self,
        loaded: Loaded,
        classifier: Classifier | None,
        label: str | None = None,
        text: str = "",
    ) -> None:
        """Start with `text`, and with the classifier's score of `label`; unset: of its last."""
        architecture = loaded.architecture
        self.loaded = loaded
        self._classifier = classifier
        self._tracer = Tracer(loaded)
        scores = self._scores()
        rule = f"one of {', '.join(scores)}" if scores else "unset: no class has a score"
        require(label is None or label in scores, "label", label, rule)
        self._label = label
        if scores and label is None:
            self._label = scores[-1]
        self._text = text
        self._state: State = state_of(architecture)
        self._layer = architecture.layers - 1
        self._unit: int | None = None
        if classifier:
            part, self._unit = divmod(int(classifier.ranking[0]), architecture.hidden)
            self._state, self._layer = classifier.about.layers(architecture)[part]
        self.read({"text": ""})  # compiles

    def model(self, _: dict[str, Any], check: Callable[[], None] = go_on) -> dict[str, Any]:
        """Describe the loaded model."""
        architecture = self.loaded.architecture
        return {
            "name": self.loaded.name,
            "layers": architecture.layers,
            "hidden": architecture.hidden,
            "state": self._state,
            "states": self._states(),
            "layer": self._layer,
            "unit": self._unit,
            "text": self._text,
            "example": _EXAMPLE,
            "scores": self._scores(),
            "label": self._label,
        }

    def read(self, request: dict[str, Any], check: Callable[[], None] = go_on) -> dict[str, Any]:
        """Read {text, state, layer, unit, label}: values, classes, active units, next bytes.

        With a label, the values after each character are the classifier's score of it.
        """
        text = _text(request)
        state: State = _argument(request, "state", str, self._state)
        known = self._states()
        require(state in known, "state", state, f"one of {', '.join(known)}")
        layers, hidden = self.loaded.architecture.shape
        layer = _argument(request, "layer", int, self._layer)
        require(0 <= layer < layers, "layer", layer, f"0 to {layers - 1}")
        label = _argument(request, "label", str, None)
        if label is not None and label not in self._scores():
            raise UserError(f"there is no score of {reprlib.repr(label)}.")
        trace = self._tracer(prompt_bytes(text, self.loaded.cleaning), [(state, layer)], check)
        cleaned = clean(text, self.loaded.cleaning)
        classes, unlike = self._classes(text, cleaned, check)
        last_H = trace.values_TH[-1]
        active = np.argsort(-np.abs(last_H))[:_SHOWN]
        unit = _argument(request, "unit", int, int(active[0]))
        require(0 <= unit < hidden, "unit", unit, f"0 to {hidden - 1}")
        shown: list[dict[str, Any]] = []
        if label is None:
            shown = _characters(trace.text, trace.values_TH[:, unit])
        elif self._classifier and cleaned:
            shown = _characters(*running_score(self._tracer, self._classifier, text, label, check))
        predicts = self.loaded.architecture.objective == "next-byte"
        likeliest = np.argsort(-trace.next_V)[:_SHOWN].tolist() if predicts else []
        return {
            "state": state,
            "layer": layer,
            "unit": unit,
            "label": label,
            "characters": shown,
            "classes": classes,
            "unlike": unlike,
            "broken": is_broken(text),
            "active": [{"unit": int(u), "value": round(float(last_H[u]), 4)} for u in active],
            "next": [
                {"byte": b, "text": _shown(b), "probability": float(trace.next_V[b])}
                for b in likeliest
            ],
        }

    def generate(
        self, request: dict[str, Any], check: Callable[[], None] = go_on
    ) -> dict[str, Any]:
        """Continue {text, bytes, temperature, seed, unit, value}; a null value holds no unit."""
        text = _text(request)
        bytes = _argument(request, "bytes", int, 200)
        value = _argument(request, "value", float, None)
        require_kind("bytes", bytes, Annotated[int, Between(1, _MOST_GENERATED)])
        unit = _argument(request, "unit", int, self._unit or 0)
        options = SamplingOptions(
            bytes=bytes,
            seed=_argument(request, "seed", int, 0),
            temperature=_argument(request, "temperature", float, 0.7),
            set_unit=None if value is None else {unit: value},
        )
        pieces = generate(self._tracer, text, options, check)
        return {"text": "".join(as_text(piece for (piece,) in pieces))}

    def _scores(self) -> list[str]:
        """The classes whose score after each character can be shown."""
        linear = self._classifier
        if not linear or linear.words or self.loaded.architecture.bidirectional:
            return []
        return linear.classes

    def _states(self) -> list[str]:
        return [*self.loaded.architecture.states, "mean_h", "max_h"]

    def _classes(
        self, text: str, cleaned: bytes, check: Callable[[], None]
    ) -> tuple[list[dict[str, Any]], bool]:
        """The classes, and whether the text is unlike what the classifier knows."""
        if not self._classifier or not cleaned:
            return [], False
        about = self._classifier.about
        read = self._tracer(cleaned, about.layers(self.loaded.architecture), check)
        limit = about.familiar
        unlike = bool(limit and limit.is_out_of_domain(read.nats, len(cleaned) - 1))
        (shares,) = self._classifier.probabilities(read.values_TH[-1:], [text])
        classes = []
        for name, share in zip(self._classifier.classes, shares, strict=True):
            classes.append({"name": name, "probability": float(share)})
        return classes, unlike


def _characters(text: bytes, values_T: Any) -> list[dict[str, Any]]:
    texts, ends = characters(text)
    values = values_T[ends].tolist()
    return [{"text": one, "value": round(v, 4)} for one, v in zip(texts, values, strict=True)]


def _text(request: dict[str, Any]) -> str:
    text: str = _argument(request, "text", str, "")
    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise RequestError(f"the text is longer than {MOST_BYTES:,} bytes; make it shorter.", 413)
    return text


def _argument(request: dict[str, Any], name: str, kind: type[Any], default: Any) -> Any:
    value: Any = request.get(name)
    if value is None:
        return default
    require_kind(name, value, kind)
    return kind(value)


def _shown(byte: int) -> str:
    names = {10: "↵", 32: "␣", 2: "STX", 3: "ETX"}
    if 32 < byte < 127:
        return chr(byte)
    return names.get(byte, f"0x{byte:02x}")
