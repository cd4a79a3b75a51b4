"""The `mlstm-jax` command: run a subcommand, and turn errors into messages and exit codes.

Exit codes: 0 success, 1 failure (such as a run that diverged, or a full disk), 2 a mistake in the
input, 129 terminal closed, 130 interrupted (Ctrl-C), 143 terminated.

Little is imported at the top, so that help is fast, and Ctrl-C during the imports is caught, too.
"""

import ast
import importlib
import keyword
import os
import signal
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, cast

from mlstm_jax import __version__, environment, shipped, terminal
from mlstm_jax.corpora.sources import Source, check_source
from mlstm_jax.errors import KnownError, Note, UserError, did_you_mean, explained, nearest
from mlstm_jax.guard import WEIGHTS, Interrupted, interruptible

# Each command is a `commands.Command` of its name in this module of commands/, imported when it is
# run: most import JAX.
_COMMANDS = {
    "quickstart": "training",
    "configs": "corpora",
    "prepare": "corpora",
    "inspect": "corpora",
    "plan": "training",
    "schedule": "training",
    "sweep": "training",
    "train": "training",
    "evaluate": "models",
    "generate": "models",
    "heatmap": "models",
    "report": "models",
    "features": "texts",
    "transfer": "texts",
    "finetune": "texts",
    "classify": "texts",
    "view": "models",
    "import": "models",
    "export": "models",
}

# Commands that run no model: they do not use the GPU, which may be busy.
_ON_CPU = ("configs", "prepare", "inspect", "plan", "schedule", "import", "export")

# What other programs call a command, and what they call an option. The parser itself suggests
# options for misspelt ones.
_ALSO_CALLED = {
    "models": ["configs"],
    "predict": ["classify"],
    "sample": ["generate"],
    "serve": ["view"],
}
_RATE = ("--optimizer.learning-rate", "--learning-rate")
_PLATFORM = ("JAX_PLATFORMS=cpu or cuda, set before the command",)
_MEANT = {
    "--lr": _RATE,
    "--optimizer.lr": _RATE,
    "--units": ("--model.hidden",),
    "--hidden": ("--model.hidden",),
    "--model.units": ("--model.hidden",),
    "--device": _PLATFORM,
    "--gpu": _PLATFORM,
    "--cpu": _PLATFORM,
}
# What a second word, given without an option, is likely to be.
_SECOND = {
    "generate": "--prompt",
    "heatmap": "--text",
    "evaluate": "--split",
    "transfer": "--train",
    "finetune": "--train",
    "export": "--out",
    "view": "--classifier",
}
# Commands whose first word is a model, and the place of the word that is their file of texts.
_PATHS = {
    "evaluate": None,
    "generate": None,
    "heatmap": None,
    "report": None,
    "features": 1,
    "transfer": None,
    "finetune": None,
    "classify": 2,
    "view": None,
    "export": None,
}
# Their options that name such files.
_FILES = ("--train", "--valid", "--test")


def main(arguments: Sequence[str] | None = None, program: str | None = None) -> None:
    """Run the command line and exit."""
    terminal.open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    prefix = "mlstm-jax" if words[0].startswith("-") else f"mlstm-jax {words[0]}"
    error: KnownError | None = None
    code: object = None
    try:
        with interruptible():
            run(words, program)
    except KnownError as known:
        error = known
    except SystemExit as stop:  # of the parser
        code = stop.code
    except BrokenPipeError:  # The reader, such as `| head`, has closed the pipe.
        _discard_output()
        code = 141
    except Exception as unknown:
        error = explained(unknown)
        if error is None:
            raise
    # At exit, Python would flush again, print an error and replace our exit code.
    try:
        sys.stdout.flush()
    except OSError as lost:
        _discard_output()
        error = error or (lost if isinstance(lost, KnownError) else None)
    if error:
        code = error.exit_code
        terminal.tell(f"{prefix}: {terminal.message(error)}")
    if isinstance(error, Interrupted) and arguments is None:
        for number in WEIGHTS:
            signal.signal(number, signal.SIG_DFL)  # A second one ends the process at once.
    if code is not None:
        sys.exit(code)  # type: ignore[arg-type]


def _discard_output() -> None:
    """Redirect standard output, and what is left in its buffer, to /dev/null."""
    with suppress(Exception):  # A program may have replaced it by an object without a file.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(words: Sequence[str], program: str | None) -> None:
    """Run the command that the words of a command line name.

    Raises:
        KnownError: its message names options.
        SystemExit: the words ask for help, or are wrong; a message has been printed.
    """
    name, *rest = words
    if name in ("-h", "--help", "help"):
        print(_usage("mlstm-jax"))
        return
    if name == "--version":
        print(f"mlstm-jax {__version__}")
        return
    if name not in _COMMANDS:
        near = did_you_mean(_ALSO_CALLED.get(name) or nearest(name, _COMMANDS))
        more = "`mlstm-jax --help` lists the commands."
        terminal.tell(f"mlstm-jax: unknown command {name!r}{near} {more}")
        sys.exit(2)
    _require_paths(name, rest)
    environment.silence()
    environment.without_gpus()
    if name in _ON_CPU:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    else:
        environment.cache_programs()
    from mlstm_jax.commands import as_options

    command = _command(name)
    options = command.options()
    try:
        _require_no_guess(name, rest, options.values())
        with _notes():
            command(rest, program if program and name == "train" else f"mlstm-jax {name}")
    except KnownError as error:
        error.args = (as_options(str(error), options), *error.args[1:])
        raise


def _require_paths(name: str, words: Sequence[str]) -> None:
    """Raise UserError if a model or file that the words name does not exist.

    The command checks them, too, but only after it has imported JAX, which takes seconds.
    """
    if name not in _PATHS or {"-h", "--help"} & set(words):
        return
    paths = list(takewhile(lambda word: not word.startswith("-"), words))
    if paths:
        shipped.require_model(Path(paths[0]))
    place = _PATHS[name]
    if place and len(paths) > place:
        check_source(Source(paths[place]))
    for option, value in pairwise(words):
        if option in _FILES:
            check_source(Source(value))


def _command(name: str) -> Any:
    module = importlib.import_module(f"mlstm_jax.commands.{_COMMANDS[name]}")
    return getattr(module, _identifier(name))


def _identifier(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _usage(program: str) -> str:
    lines = [f"usage: {program} COMMAND ...", ""]
    lines += [f"  {name:<11}{summary}" for name, summary in _summaries()]
    lines += [
        "",
        f"{program} COMMAND --help explains the options of a command; {program} --version.",
        "Compiled programs are cached in ~/.cache/mlstm_jax, at most 1 GB per type of processor.",
        f"Set {environment.CACHE} to another folder, or to an empty value to turn the cache off.",
    ]
    return "\n".join(lines)


def _summaries() -> Iterator[tuple[str, str]]:
    """Yield each command and the first line of its docstring, without importing it."""
    folder = Path(__file__).with_name("commands")
    sources = {
        module: ast.parse((folder / f"{module}.py").read_text(encoding="utf-8")).body
        for module in dict.fromkeys(_COMMANDS.values())
    }
    for name, module in _COMMANDS.items():
        for node in sources[module]:
            if isinstance(node, ast.FunctionDef) and node.name == _identifier(name):
                yield name, str(ast.get_docstring(node)).splitlines()[0]


def _require_no_guess(name: str, words: Sequence[str], options: Collection[str]) -> None:
    """Raise UserError if the words have an option of other programs, or a value without its own."""
    for word in words:
        given = word.partition("=")[0]
        meant = [one for one in _MEANT.get(given, ()) if one in options or one[0] != "-"]
        if meant and given not in options:
            raise UserError(f"unknown option {given}{did_you_mean(meant)}")
    if name in _SECOND and len(words) > 1 and not any(word.startswith("-") for word in words[:2]):
        raise UserError(f"{words[1]!r}: give it as an option, {_SECOND[name]} {words[1]!r}.")


@contextmanager
def _notes() -> Iterator[None]:
    """Print each `errors.Note` that the block warns with, as a line on standard error."""
    from mlstm_jax.commands import as_options

    with warnings.catch_warnings():
        warnings.simplefilter("always", Note)
        show: Any = warnings.showwarning

        def print_note(text: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, Note):
                terminal.tell(f"note: {terminal.message(as_options(str(text)))}")
            else:
                show(text, category, *rest, **more)

        warnings.showwarning = cast("Any", print_note)
        yield
