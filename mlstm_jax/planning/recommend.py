"""The settings of the optimizer that our measurements suggest for a run."""

from collections.abc import Sequence
from typing import Any

from mlstm_jax.config import Config, Model, by_phase
from mlstm_jax.training.schedule import Segment
from mlstm_jax.training.state import parameter_count

# The optimizer's settings for the batch and the length of a run: docs/large_batches.md as a table.
# They were measured with mLSTMs; see there, "Which rate for a large batch?" and "Decay keeps Muon's
# angle".
_ALWAYS = {
    "name": "muon",
    "scaling": "none",
    "schedule": "linear",
    "muon_momentum": 0.9,
    "muon_steps": 3,
    "b2_half_life": 710e3,
}
# By the fewest rows of a batch.
_BY_ROWS = {
    0: {"muon_learning_rate": 0.12, "learning_rate": 16e-3, "warmup_steps": 20},
    1000: {"muon_learning_rate": 0.24, "learning_rate": 32e-3, "warmup_steps": 100},
}
_DECAY = 4 / 0.12  # weight decay times updates, at any rate
_UPDATES_FOR_DECODER = 5000
# Weight decay helped with so many bytes of text per parameter, or epochs; not with few bytes.
_BYTES, _EPOCHS, _FEW_BYTES = 560, 7, 8
_MEASURED = {"rows": (16, 1024), "bytes in a window": (64, 64), "units": (128, 512)}


def recommend(config: Config, segments: Sequence[Segment]) -> str:
    """Return fields of the optimizer for a run, and where they go beyond what was measured.

    Args:
        config: its phases, data and model are used, not its optimizer.
        segments: of the run; the largest batch counts.
    """
    rows, updates = max(part.batch for part in segments), segments[-1].last
    windows = [phase.data.window for phase in by_phase(config)]
    epochs = sum((part.last - part.first) / part.steps_per_epoch for part in segments)
    read = zip(segments, windows, strict=True)
    text = sum((part.last - part.first) * part.batch * window for part, window in read)
    parameters = parameter_count(config)
    chosen: dict[str, Any] = _ALWAYS | _BY_ROWS[max(least for least in _BY_ROWS if rows >= least)]
    decays = text > _FEW_BYTES * parameters or epochs >= _EPOCHS
    chosen["weight_decay"] = float(f"{_DECAY / updates:.2g}") if decays else 0.0
    chosen["muon_decoder"] = updates >= _UPDATES_FOR_DECODER
    options = " \\\n  ".join(_field(name, value) for name, value in chosen.items())
    notes = []
    if _FEW_BYTES * parameters < text < _BYTES * parameters and epochs < _EPOCHS:
        notes.append(
            f"the run reads {text / parameters:.0f} bytes per parameter; between {_FEW_BYTES} and "
            f"{_BYTES} it was not measured whether weight decay helps"
        )
    sizes = {"rows": rows, "bytes in a window": max(windows), "units": config.model.hidden}
    for name, (least, most) in _MEASURED.items():
        if not least <= sizes[name] <= most:
            span = f"{least:,} to {most:,}" if least < most else f"{least:,}"
            notes.append(f"measured with {span} {name}, not {sizes[name]:,}")
    if not isinstance(config.model, Model):
        notes.append(f"measured with mLSTMs, not with {config.model.title}")
    return "\n".join(
        [
            f"{rows:,} rows of {max(windows):,} bytes, {updates:,} updates, {epochs:.2f} epochs, "
            f"{config.model.hidden:,} units ({parameters:,} parameters):",
            "",
            f"  {options}",
            "",
            *(f"note: {note}." for note in notes),
        ]
    ).rstrip()


def _field(name: str, value: object) -> str:
    """Return a field and its value, which the command line shows as an option."""
    if value is False:
        return f"`optimizer.no_{name}`"
    return f"`optimizer.{name}={format(value, 'g') if isinstance(value, float) else value}`"
