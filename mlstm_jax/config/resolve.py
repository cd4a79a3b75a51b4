"""What a config becomes before it trains: `resolve` sets what is unset, once.

Everything below works with resolved configs only.
"""

import dataclasses
from typing import Literal, NamedTuple

from mlstm_jax.config import MLSTM, Config
from mlstm_jax.errors import require
from mlstm_jax.model import pallas
from mlstm_jax.model.stack import Recurrent
from mlstm_jax.options import Compute


class Hardware(NamedTuple):
    """The devices that a run trains on, as far as its config depends on them."""

    devices: int = 1  # of all processes
    fastest: Compute = "fp32"  # for layers of the model's units
    capability: tuple[int, int] | None = None  # of NVIDIA's GPUs


def resolve(config: Config, hardware: Hardware, before: Config | None = None) -> Config:
    """Set what is unset, and what follows from other fields; check that they go together.

    A run that resumes keeps the compute type, kernels and positions of its config, `before`; a new
    one has the fastest of the hardware, and as many positions as its window has bytes. The global
    batch follows from `data.batch_per_device`, the model's objective from `train.objective`.
    """
    model = config.model
    data = config.data
    precision = config.precision
    devices = config.devices
    if precision.compute is None:
        compute = before.precision.compute if before else None
        if precision.recurrent != "compute":
            compute = "bf16"
        precision = dataclasses.replace(precision, compute=compute or hardware.fastest)
    if devices.kernels == "auto":
        kernels = before.devices.kernels if before else "auto"
        if kernels == "auto":
            kernels = _fastest_kernels(config, hardware.capability)
        devices = dataclasses.replace(devices, kernels=kernels)
    places = data.window
    if before and type(before.model) is type(model):
        # Where they are too few for the window, a resume is refused.
        places = max(places, before.model.longest_window or 0)
    model = model.for_windows(places)
    if config.train.objective is not None:
        model = dataclasses.replace(model, objective=config.train.objective)
    if data.batch_per_device is not None:
        batch = data.batch_per_device * hardware.devices
        data = dataclasses.replace(data, batch=batch, batch_per_device=None)
    config = dataclasses.replace(
        config, model=model, data=data, precision=precision, devices=devices
    )
    _require_fit(config, hardware.devices)
    return config


def _fastest_kernels(
    config: Config, capability: tuple[int, int] | None
) -> Literal["xla", "pallas"]:
    """The kernels of a new run."""
    recurrent = config.precision.recurrent
    if not isinstance(config.model, MLSTM) or recurrent == "fp8_emulated":
        return "xla"
    if recurrent == "fp8":
        return "pallas"
    # They have trained on an H100.
    is_proven = capability == (9, 0) and not pallas.missing(config.model.hidden, capability)
    return "pallas" if is_proven else "xla"


def _require_fit(config: Config, device_count: int) -> None:
    """Raise UserError if fields do not go together."""
    # Devices and micro-batches share the rows evenly (Puri et al. 2018, section IV).
    batch = config.data.batch
    rule = (
        f"a multiple of {device_count}, so that the devices share it evenly; or set "
        "data.batch_per_device, or use fewer devices with `devices.count`"
    )
    require(batch % device_count == 0, "data.batch", batch, rule)
    rows = batch // device_count
    micro_batches = config.train.micro_batches
    rule = f"a divisor of the {rows} rows of a device (`data.batch` {batch})"
    require(rows % micro_batches == 0, "train.micro_batches", micro_batches, rule)
    # Some fields are for other kinds of model.
    model = config.model
    every = config.train.recompute_every
    rule = f"unset for {model.cli_name}; use it with a recurrent model"
    require(every is None or isinstance(model, Recurrent), "train.recompute_every", every, rule)
    is_mlstm = isinstance(model, MLSTM)
    kernels = config.devices.kernels
    rule = f"xla for {model.cli_name}; use it with {MLSTM().cli_name}"
    require(kernels != "pallas" or is_mlstm, "devices.kernels", kernels, rule)
    recurrent = config.precision.recurrent
    if recurrent != "compute":
        rule = f"compute, unless the model is {MLSTM().cli_name} with one layer"
        require(is_mlstm and model.layers == 1, "precision.recurrent", recurrent, rule)
        end = f"with `precision.recurrent` {recurrent}"
        compute = config.precision.compute
        require(compute == "bf16", "precision.compute", compute, f"bf16 {end}")
        require(every is None, "train.recompute_every", every, f"unset {end}")
        own = "pallas" if recurrent == "fp8" else "xla"
        require(kernels == own, "devices.kernels", kernels, f"{own} {end}")
    places = model.longest_window
    window = config.data.window
    fits = places is None or window <= places
    require(fits, "data.window", window, f"at most `model.positions`, {places}")
    cell = config.precision.cell
    rule = f"fp32 for {model.cli_name}, which has no c"
    require(cell == "fp32" or "c" in model.states, "precision.cell", cell, rule)
