"""The `mlstm-jax` command: run a subcommand, and turn errors into messages and exit codes.

Exit codes: 0 success, 1 failure (such as a run that diverged, or a full disk), 2 a mistake in the
input, 129 terminal closed, 130 interrupted (Ctrl-C), 141 broken pipe, 143 terminated; of a run that
stops with a checkpoint, `train.sigterm_exit_code` instead of 129 and 143.

Little is imported at the top, so that help is fast, and Ctrl-C during the imports is caught, too.
"""

import importlib
import keyword
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from mlstm_jax import __version__, environment, host, shipped, terminal
from mlstm_jax.errors import KnownError, Note, UserError, did_you_mean, explained, nearest
from mlstm_jax.guard import WEIGHTS, Interrupted, interruptible

# The commands in each module of commands/.
_MODULES = {
    "training": ("quickstart", "train", "plan"),
    "corpora": ("prepare", "inspect", "configs"),
    "models": ("sweep", "evaluate", "report", "transfer", "finetune", "import", "export"),
    "texts": ("features", "classify", "generate", "heatmap", "view"),
}
COMMANDS = {name: module for module, names in _MODULES.items() for name in names}

# Commands that run no model: they do not use the GPU, which may be busy.
_ON_CPU = ("configs", "prepare", "inspect", "plan", "import", "export")

# Commands whose first word is a model.
_OF_MODELS = ("evaluate", "report", "transfer", "finetune", "export", *_MODULES["texts"])

# An option or a field in a message: `text_column`, or as its subject, "at_most is 0".
_NAMED = re.compile(r"`([a-z_0-9.]+)(?:=True)?`|^([a-z_0-9.]+)(?= is )", re.MULTILINE)

# What a second word is meant for, in commands whose only word is a model.
_SECOND = {
    **{"evaluate": "--corpus", "report": "--corpus", "transfer": "--train", "finetune": "--train"},
    **{"generate": "--prompt", "heatmap": "--text", "export": "--out", "view": "--classifier"},
}

# What other programs call a command.
_ELSEWHERE = {
    **{"predict": "classify", "label": "classify", "encode": "features", "embed": "features"},
    **{"fit": "transfer", "sample": "generate", "serve": "view", "models": "configs"},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    terminal.open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    prefix = "mlstm-jax" if words[0].startswith("-") else f"mlstm-jax {words[0]}"
    error: KnownError | None = None
    code: object = None
    with terminal.options_spelled(partial(_with_options, name=words[0])):
        try:
            with interruptible():
                run(words)
        except KnownError as known:
            error = known
        except SystemExit as stop:  # of the parser
            code = stop.code
        except BrokenPipeError:  # The reader, such as `| head`, has closed the pipe.
            code = 141
        except Exception as unknown:
            error = explained(unknown)
            if error is None:
                raise
        lost = terminal.flush_at_end(sys.stdout)
        if lost and not isinstance(lost, BrokenPipeError):
            error = error or explained(lost)
        if error:
            code = error.exit_code
            terminal.tell(f"{prefix}: {terminal.message(error)}")
    terminal.flush_at_end(sys.stderr)
    if isinstance(error, Interrupted) and arguments is None:
        for number in WEIGHTS:
            signal.signal(number, signal.SIG_DFL)  # A second one ends the process at once.
    if code is not None:
        sys.exit(code)  # type: ignore[arg-type]


def run(words: Sequence[str]) -> None:
    """Run the command that the words of a command line name; see `main` for what it raises."""
    name, *rest = words
    if name == "help" and rest:
        run([rest[0], "--help"])
        return
    if name in ("-h", "--help", "help"):
        print(_usage())
        return
    if name == "--version":
        print(f"mlstm-jax {__version__}")
        return
    if name not in COMMANDS:
        meant = [_ELSEWHERE[name]] if name in _ELSEWHERE else nearest(name, COMMANDS)
        more = f"{did_you_mean(meant)} `mlstm-jax --help` lists the commands."
        raise UserError(f"unknown command {name!r}{more}")
    if name in _OF_MODELS and rest and not rest[0].startswith("-"):
        shipped.require_model(Path(rest[0]))  # before JAX is imported, which takes seconds
        if name in _SECOND and rest[1:] and not rest[1].startswith("-"):
            word = shlex.quote(rest[1])
            raise UserError(f"{word} has no option before it; did you mean {_SECOND[name]} {word}?")
    # To the end of the process: Orbax's event loops may be deleted, and say so, only then.
    environment.silence()
    if name in _ON_CPU:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with _notes():
        call = parse(name, rest)
        call()


def parse(name: str, words: Sequence[str]) -> Callable[[], None]:
    """Turn the words of a command into a call; exit if they are wrong or ask for help."""
    from mlstm_jax import commands

    command = _command(name)
    parse_words = getattr(sys.modules[command.__module__], "parse", commands.parse)
    call: Callable[[], None] = parse_words(command, words, f"mlstm-jax {name}")
    return call


def _with_options(text: str, name: str) -> str:
    """A message with a command's options as the command line spells them, --text-column."""
    if name not in COMMANDS:
        return text
    return _NAMED.sub(partial(_spelled, name=name), text).replace(" or None", ", or unset")


def _spelled(found: re.Match[str], name: str) -> str:
    """What `_NAMED` has found: an option of a command as --text-column, or as it is."""
    from mlstm_jax import commands

    option = found[1] or found[2]
    if COMMANDS[name] == "training":
        from mlstm_jax.commands import training

        known = commands.options(_command(name), training.config_type())
        word, _, _ = option.partition(".")  # the section of a field, such as data.batch
    else:
        known = commands.options(_command(name))
        word = option
    return f"--{option.replace('_', '-')}" if word in known else found[0]


def _command(name: str) -> Callable[..., None]:
    """The function of a command; its module imports neither NumPy nor JAX."""
    module = importlib.import_module(f"mlstm_jax.commands.{COMMANDS[name]}")
    function: Callable[..., None] = getattr(module, f"{name}_" if keyword.iskeyword(name) else name)
    return function


def _usage() -> str:
    lines = ["usage: mlstm-jax COMMAND ...", ""]
    for name in COMMANDS:
        summary, _, _ = str(_command(name).__doc__).partition("\n")
        lines.append(f"  {name:<11}{summary}")
    lines += [
        "",
        "mlstm-jax COMMAND --help explains the options of a command; mlstm-jax --version.",
        "Compiled programs are cached in ~/.cache/mlstm_jax, at most 1 GB per type of processor.",
        f"Set {host.CACHE} to another folder, or to an empty value to turn the cache off.",
    ]
    width = shutil.get_terminal_size().columns
    return "\n".join(textwrap.fill(line, width, subsequent_indent=" " * 13) for line in lines)


@contextmanager
def _notes() -> Iterator[None]:
    """Print each `errors.Note` that the block warns with, as a line on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", Note)
        show: Any = warnings.showwarning

        def print_note(text: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, Note):
                terminal.tell(f"note: {terminal.message(text)}")
            else:
                show(text, category, *rest, **more)

        warnings.showwarning = cast("Any", print_note)
        yield
