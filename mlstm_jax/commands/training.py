"""Commands of a config: train, quickstart, plan."""

import argparse
import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from mlstm_jax import environment, shipped
from mlstm_jax.commands import Flag, parser
from mlstm_jax.errors import UserError, did_you_mean, nearest
from mlstm_jax.options import OPTIMIZERS
from mlstm_jax.terminal import show

if TYPE_CHECKING:
    from mlstm_jax.config import Config

# The config of a command without one: it needs no data.
_QUICKSTART = shipped.files("config")["quickstart"]

# For a new user, after the quickstart.
_NEXT = """
What to try next:
  {program} generate {run} --prompt "The object" --bytes 300
  {program} evaluate {run} --split test
A larger model of reviews, which comes with the package, on a local page (extra "view"):
  {program} view
Your own text, one document per line (or .csv, .jsonl, .gz of each):
  {program} prepare reviews.csv --out corpora/mine
  {program} train small_512 --data.corpus corpora/mine --out runs/mine"""

# In the help; a Config, whose fields are options, needs JAX.
_NAMED = Annotated[
    str,
    Positional,
    arg(
        metavar="[CONFIG]",
        help="a Python file, which is executed, or a name that `mlstm-jax configs` lists. "
        "--help-all shows its fields, which are options, too",
    ),
]


def _program() -> str:
    """The name of this program, or its path where the shell does not find the name."""
    program = Path(sys.argv[0])
    if program.name != "mlstm-jax" or shutil.which(program.name):
        return "mlstm-jax"
    return os.path.relpath(program)


def parse_with_config(
    command: Callable[..., None], words: Sequence[str], program: str
) -> parser.Call:
    """Turn a command line into a call, as `parser.parse` does; the options change a config.

    ``[CONFIG] [model:KIND] [--section.field value ...]``; the default config is the quickstart.
    """
    if {"-h", "--help"} & set(words):
        named = {"config": _NAMED}
        return parser.parse(command, ["--help"], program, types=named, config="quickstart")
    from mlstm_jax.config import flatten, load_file, vary
    from mlstm_jax.options import RENAMED

    kinds = [word for word in words if word.startswith("model:")]
    words = [word for word in words if word not in kinds]
    config_name = str(_QUICKSTART)
    if words and not words[0].startswith("-"):
        config_name = words.pop(0)
    config = load_file(config_name)
    if "--help-all" in words:
        words = ["--help"]
        program = f"{program} [CONFIG]"
    if kinds:
        config = _with_kind(config, kinds)
    # The optimizer is chosen first: it unsets the fields that only the config's own has.
    optimizer = argparse.ArgumentParser("mlstm-jax", add_help=False, allow_abbrev=False)
    optimizer.add_argument("--optimizer.name", dest="name")
    chosen, words = optimizer.parse_known_args(words)
    if chosen.name is not None:
        config = vary(config, optimizer__name=chosen.name)
    options = {word.partition("=")[0].replace("_", "-") for word in words}
    if "--data.batch" in options:
        if "--data.batch-per-device" in options:
            raise UserError("set `data.batch` or `data.batch_per_device`, not both.")
        config = vary(config, data__batch_per_device=None)
    known = RENAMED | dict.fromkeys(flatten(config), "")
    return parser.parse(command, words, program, known, config_type(), config=config)


def config_type() -> dict[str, Any]:
    """The type of the argument `config` of these commands, whose fields are options."""
    from mlstm_jax.config import Config

    return {"config": Annotated[Config, arg(name="")]}


def _with_kind(config: "Config", words: Sequence[str]) -> "Config":
    """Replace the kind of model by one such as ``model:lstm``, with the sizes that were changed."""
    from mlstm_jax.model.architecture import Architecture

    kinds = Architecture.kinds
    name = words[0].removeprefix("model:")
    if name not in kinds or len(words) > 1:
        known = ", ".join(f"model:{kind}" for kind in sorted(kinds))
        near = did_you_mean(f"model:{kind}" for kind in nearest(name, kinds))
        raise UserError(f"{' and '.join(words)}: choose one model of {known}{near}")
    kind = kinds[name]
    if kind is type(config.model):
        return config
    usual = type(config.model)()
    sizes: dict[str, Any] = {}
    for field in dataclasses.fields(Architecture):
        value = getattr(config.model, field.name)
        # A config may set units that are the default of its own kind, but not of the new one.
        if field.name == "hidden" or value != getattr(usual, field.name):
            sizes[field.name] = value
    return dataclasses.replace(config, model=kind(**sizes))


def train(config: "Config", resume: Flag = False, reset_carry: Flag = False) -> None:
    """Train a model or resume an unfinished run; without a config, train the quickstart.

    CONFIG sets the fields of a run, and the options override them. A word such as model:lstm or
    model:bert chooses the kind of model; a wrong one lists all. An unfinished run in the same
    folder is resumed. The fields that one sets first:

      --data.corpus FOLDER         the corpus, made by `mlstm-jax prepare`
      --out FOLDER                 the run folder
      --model.hidden N             units of a layer; and --model.layers N
      --data.batch N               rows in a step; their bytes: --data.window N
      --optimizer.name NAME        OPTIMIZERS
      --optimizer.learning-rate X  and --optimizer.schedule
      --train.epochs X             how long; or --train.steps N
      --train.eval-every N         steps; and --train.checkpoint-every N
      --train.start-from RUN       train the parameters of another run further
      --precision.compute TYPE     fp32, tf32, bf16 or fp16; unset: the fastest
      --devices.count N            devices of this process; unset: all

    Args:
        resume: fail unless the run folder contains a run to resume.
        reset_carry: resume with another `data.batch`, `data.window`, `data.shards` or order of the
            shards. The hidden state of every stream then starts from zero, near the same place in
            the text.
    """
    from mlstm_jax.config import load_file
    from mlstm_jax.launcher import process_info
    from mlstm_jax.training.run_folder import config_of
    from mlstm_jax.training.train import Session
    from mlstm_jax.training.train import train as run_train

    corpus = load_file(_QUICKSTART).data.corpus
    is_quickstart = config.data.corpus == corpus
    before = config_of(Path(config.out))
    if is_quickstart and before and before.data.corpus != corpus:
        raise UserError(
            f"{config.out} holds a run on {before.data.corpus}, not on {corpus}. A run is resumed "
            "by the command that began it: name its config and its options."
        )
    if is_quickstart and not resume and not Path(corpus).exists():
        from mlstm_jax.corpora.prepare import prepare

        # The default, 1 in 1,000 for validation and for test, is too little.
        prepare(["pydoc:"], Path(corpus), split=(18, 1, 1))
    index, processes = process_info(config.distributed, os.environ)
    environment.prepare(config.devices, deterministic=config.train.deterministic)
    session = Session(resume=resume, reset_carry=reset_carry, owns_process=True)
    folder = run_train(config, session)
    if processes == 1:
        from mlstm_jax.api.model import load

        show(f"\n{load(folder).report()}")
        show(f'In Python, mlstm_jax.load({str(folder)!r}).plot() is its curve (extra "notebooks").')
        if is_quickstart:
            show(_NEXT.format(run=folder, program=_program()))
    elif index == 0:
        show(f"\ndone; see the results with `mlstm-jax report {folder}`")


train.__doc__ = str(train.__doc__).replace("OPTIMIZERS", ", ".join(OPTIMIZERS))


def quickstart(config: "Config", resume: Flag = False, reset_carry: Flag = False) -> None:
    """Train a small model on Python's own documentation and report; about two minutes.

    Args:
        resume: fail unless the run folder contains a run to resume.
        reset_carry: see `mlstm-jax train --help`.
    """
    train(config, resume, reset_carry)


def plan(
    config: "Config",
    machine: str,
    gpus: tuple[int, ...] | None = None,
    corpus_bytes: float | None = None,
    price: float | None = None,
) -> None:
    """Estimate the time, memory and cost of a config on a machine.

    Seconds per iteration, bytes per second, memory, hours and cost on one to many devices, from a
    roofline of the step and a ring all-reduce. CONFIG and its options work as for `train`.

    Args:
        machine: a JSON description, or the name of one in the package, such as h200.
        gpus: numbers of devices to plan for, on all nodes together; unset: 1, 2, 4 and so on up to
            128, if they can share the batch evenly.
        corpus_bytes: bytes of the training split, unpacked, such as 40e9; unset: of `data.corpus`.
        price: of one device per hour; unset: the price in the description.
    """
    from mlstm_jax.planning import plan as make_plan

    show(make_plan(config, machine, gpus, corpus_bytes, price=price))
