"""Commands of a config: train, quickstart, sweep, plan, schedule."""

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from mlstm_jax import output, shipped
from mlstm_jax.api import functions
from mlstm_jax.commands import Call, Command, as_options, command
from mlstm_jax.config import Config, load_file, vary
from mlstm_jax.config import text as config_text
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.distributed import process_info
from mlstm_jax.errors import UserError, did_you_mean, nearest
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.planning import format_plan
from mlstm_jax.terminal import show, tell
from mlstm_jax.training.schedule import plot as plot_schedule

# The config of a command without one: it needs no data.
_QUICKSTART = shipped.files("config")["quickstart"]


class ConfigCommand(Command):
    """A command whose options are also the fields of a config.

    ``[CONFIG] [model:KIND] [--section.field value ...]``: a config is a Python file, or the name of
    one that comes with the package; the default is the quickstart.
    """

    def parse(self, words: Sequence[str], program: str) -> dict[str, Any]:
        """Return the arguments; the config is that of its file, with the options of the line."""
        default, rest = _take_file(words, load_file(_QUICKSTART))
        # A command line cannot express a list of phases; they come only from the file.
        phases, default = default.phases, dataclasses.replace(default, phases=())
        kind = Annotated[Config, arg(name="")]
        given = self.parameters["config"].replace(annotation=kind, default=default)
        self.parameters["config"] = given
        parsed = super().parse(rest, program)
        return parsed | {"config": dataclasses.replace(parsed["config"], phases=phases)}

    def options(self) -> dict[str, str]:
        """Return the option of each field and argument: data.batch, --data.batch."""
        fields = {name: as_options(f"`{name}`") for name in config_text.flatten(Config())}
        return fields | super().options()


def _of_config(
    function: Callable[..., Any], **names: str
) -> Callable[[Callable[..., None]], ConfigCommand]:
    return lambda show: ConfigCommand(function, show, names=names)


class Quickstart(ConfigCommand):
    """Trains the config that needs no data, and no other."""

    def parse(self, words: Sequence[str], program: str) -> dict[str, Any]:
        """Return the arguments; UserError if the words name a config."""
        named, _ = _split_config(words)
        if named is not None:
            other = f"`mlstm-jax train {named}`"
            raise UserError(f"quickstart always uses its own config; train another with {other}.")
        return super().parse(words, program)


def _train(call: Call) -> None:
    config = call.arguments["config"]
    corpus = load_file(_QUICKSTART).data.corpus
    is_quickstart = config.data.corpus == corpus
    if is_quickstart and not call.arguments["resume"] and not Path(corpus).exists():
        # The default, 1 in 1,000 for validation and for test, is too little.
        prepare(["pydoc:"], Path(corpus), split=(18, 1, 1))
    index, processes = process_info(config.distributed, os.environ)
    if processes > 1:
        folder = functions.train_folder(**call.arguments)
        if index == 0:
            show(f"\ndone; see the results with `mlstm-jax report {folder}`")
        return
    model = call()
    show(f"\n{model.report()}")
    if is_quickstart:
        show("\n" + _next_steps(model.path))


def _next_steps(run: Path) -> str:
    """Return commands for a new user to try next."""
    command = _program()
    return f"""What to try next:
  {command} generate {run} --prompt "The object" --bytes 300
  {command} evaluate {run} --split test
A larger model of reviews, which comes with the package, on a local page (extra "view"):
  {command} view
Your own text, one document per line (or .csv, .jsonl, .gz of each):
  {command} prepare reviews.csv --out corpora/mine
  {command} train small_512 --data.corpus corpora/mine --out runs/mine"""


def _program() -> str:
    """Return the command to type: `mlstm-jax` if it is on the PATH, otherwise its path."""
    beside = Path(sys.executable).with_name("mlstm-jax")
    if shutil.which("mlstm-jax") or not beside.exists():
        return "mlstm-jax"
    return os.path.relpath(beside)


@_of_config(functions.train)
def train(call: Call) -> None:
    """Train a model or resume an unfinished run; without a config, train the quickstart.

    A config (`mlstm-jax train CONFIG`, or --config CONFIG) is a Python file, which is executed, or
    a name that `mlstm-jax configs` lists. It sets the fields, and the options override them.
    Without a config the command trains the quickstart, whose values are then the defaults shown
    here. A word such as model:lstm, model:gru, model:transformer or model:bert chooses the kind of
    model. An unfinished run in the same folder is resumed.
    """
    _train(call)


@lambda show: Quickstart(functions.train, show)
def quickstart(call: Call) -> None:
    """Train a small model on Python's own documentation and report; about two minutes."""
    _train(call)


@command(functions.sweep)
def sweep(call: Call, runs: Annotated[Path, Positional, arg(metavar="SPEC")]) -> None:
    """Train all runs of a specification, one after the other, and write their tables.

    You can stop a sweep at any time and resume it with the same command. Runs that are finished or
    have diverged are not repeated. The same command in a second terminal, or on another machine
    that sees the same files, takes the runs that the first has not begun.

    Args:
        runs: Python file, which is executed, that sets `runs = {(ROW, COLUMN): Config(...)}`, or
            the name of a sweep that `mlstm-jax configs` lists.
    """

    def on_begin(number: int, total: int, key: tuple[str, str]) -> None:
        tell(f"\n{number} of {total}: {key[0]} / {key[1]}")

    call.arguments["on_begin"] = on_begin
    call()
    out = Path(call.arguments["out"])
    show((out / "table.md").read_text(encoding="utf-8"))
    show(f"all figures: {out / 'table.csv'}")


@_of_config(functions.plan, devices="gpus")
def plan(
    call: Call,
    json_: Annotated[Path | None, arg(name="json")] = None,
    overwrite: bool = False,
) -> None:
    """Estimate the time, memory and cost of a config on a machine.

    Seconds per iteration, bytes per second, memory, hours and cost on one to many devices, from a
    roofline of the step and a ring all-reduce. CONFIG (`mlstm-jax plan CONFIG`), a file or a name
    that `mlstm-jax configs` lists, sets the fields of the run, and the options override them, as
    with train.

    Args:
        json_: also write the plan to this file, as JSON.
        overwrite: replace that file if it exists.
    """
    output.require_file(json_, overwrite=overwrite, name="json")
    given = call.arguments
    config, rows = given["config"], call()
    inputs = (given[name] for name in ("machine", "corpus_bytes", "rates", "price"))
    config, machine, size = functions.plan_inputs(config, *inputs)
    document = {"machine": machine.name, "rows": [row._asdict() for row in rows]}
    show(as_options(format_plan(config, machine, rows, size)))
    if json_:
        output.write_text(json_, json.dumps(document, indent=2) + "\n")


@_of_config(functions.schedule, devices="gpus")
def schedule(
    call: Call,
    plot: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Show the learning rate of a config over its run, as a table or a plot.

    Scaling, warm-up and decay. CONFIG (`mlstm-jax schedule CONFIG`), a file or a name that
    `mlstm-jax configs` lists, sets the fields, and the options override them, as with train.

    Args:
        plot: also plot it to this .png, .svg or .pdf file (needs the extra "plot").
        overwrite: replace that file if it exists.
    """
    output.require_file(plot, overwrite=overwrite, name="plot")
    drawn = call()
    show(drawn.text)
    if plot:
        plot_schedule(drawn, plot)
        show(f"plotted: {plot}")


def _split_config(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the config that a command line names, or None, and the rest of the line.

    The config is the first word, ``CONFIG``, or follows ``--config`` anywhere.
    """
    words, named, rest = iter(arguments), list[str](), list[str]()
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if at == 0 and not word.startswith("-"):
            named.append(word)
        elif option == "--config":
            value = value if equals else next(words, "-")
            if value.startswith("-"):
                raise UserError(f"{option} needs the name of a shipped config or a file.")
            named.append(value)
        else:
            rest.append(word)
    if len(named) > 1:
        raise UserError(f"give only one config, not {' and '.join(named)}.")
    return (named[0] if named else None), rest


def _take_file(arguments: Sequence[str], default: Config) -> tuple[Config, list[str]]:
    """Return the config that a command line starts from, and the rest of it.

    A word ``model:lstm`` anywhere replaces the config's kind of model; the new one has the sizes
    that the config changed, and else its own defaults.
    """
    kinds, words = Architecture.kinds, [word for word in arguments if word.startswith("model:")]
    named, rest = _split_config([word for word in arguments if word not in words])
    config = default if named is None else load_file(Path(named))
    for word in words:
        kind = kinds.get(word.removeprefix("model:"))
        if kind is None or len(words) > 1:
            known = ", ".join(f"model:{name}" for name in sorted(kinds))
            near = [f"model:{name}" for name in nearest(word.removeprefix("model:"), kinds)]
            raise UserError(
                f"{' and '.join(words)}: choose one model of {known}{did_you_mean(near)}"
            )
        if kind is not type(config.model):
            shared = [field.name for field in dataclasses.fields(Architecture)]
            sizes = {name: getattr(config.model, name) for name in shared}
            usual = vars(type(config.model)())
            changed = {name: value for name, value in sizes.items() if value != usual[name]}
            config = dataclasses.replace(config, model=kind(**changed))
    for option in (word.partition("=")[0] for word in rest if word.startswith("--model.")):
        field = option.removeprefix("--model.").removeprefix("no-").replace("-", "_")
        if field == "kind":
            raise UserError(f"{option}: type model:lstm, for example, as a word of its own.")
        of = [f"model:{name}" for name, kind in kinds.items() if field in kind.__dataclass_fields__]
        if of and config.model.cli_name not in of:
            raise UserError(
                f"{option} is an option of {', '.join(of)}, not of {config.model.cli_name}; leave "
                f"it out, or choose {of[0]}."
            )
    options = {word.partition("=")[0].replace("_", "-") for word in rest}
    if {"--data.batch", "--data.batch-per-device"} <= options:
        raise UserError("--data.batch and --data.batch-per-device: give only one of them.")
    if "--data.batch" in options:
        config = vary(config, data__batch_per_device=None)
    return config, rest
