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
from typing import Any, NamedTuple, cast

from mlstm_jax import __version__, cache, environment, shipped, terminal
from mlstm_jax.errors import KnownError, Note, UserError, did_you_mean, explained, nearest
from mlstm_jax.guard import WEIGHTS, Interrupted, interruptible


class Command(NamedTuple):
    """What is known of a command without importing it; its function has its options and help."""

    module: str  # of commands/, which has a function of the command's name
    of_model: bool = False  # its first word is a model
    second: str = ""  # the option that a second word is meant for, if a model is its only word
    on_cpu: bool = False  # it runs no model: it does not use the GPU, which may be busy
    has_config: bool = False  # its options are the fields of a config, such as --data.batch
    also: tuple[str, ...] = ()  # what other programs call it


COMMANDS = {
    "quickstart": Command("training", has_config=True),
    "train": Command("training", has_config=True),
    "plan": Command("training", has_config=True, on_cpu=True),
    "prepare": Command("corpora", on_cpu=True),
    "inspect": Command("corpora", on_cpu=True),
    "configs": Command("corpora", on_cpu=True, also=("models",)),
    "sweep": Command("models"),
    "evaluate": Command("models", of_model=True, second="--corpus"),
    "report": Command("models", of_model=True, second="--corpus"),
    "transfer": Command("models", of_model=True, second="--train", also=("fit",)),
    "finetune": Command("models", of_model=True, second="--train"),
    "import": Command("models", on_cpu=True),
    "export": Command("models", of_model=True, second="--out", on_cpu=True),
    "features": Command("texts", of_model=True, also=("encode", "embed")),
    "classify": Command("texts", of_model=True, also=("predict", "label")),
    "generate": Command("texts", of_model=True, second="--prompt", also=("sample",)),
    "heatmap": Command("texts", of_model=True, second="--text"),
    "view": Command("texts", of_model=True, second="--classifier", also=("serve",)),
}

# An option or a field in a message: `text_column`, or as its subject, "at_most is 0".
_NAMED = re.compile(r"`([a-z_0-9.]+)(?:=True)?`|^([a-z_0-9.]+)(?= is )", re.MULTILINE)


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
        meant = [one for one, command in COMMANDS.items() if name in command.also]
        meant = meant or nearest(name, COMMANDS)
        more = f"{did_you_mean(meant)} `mlstm-jax --help` lists the commands."
        raise UserError(f"unknown command {name!r}{more}")
    command = COMMANDS[name]
    if command.of_model and rest and not rest[0].startswith("-"):
        shipped.require_model(Path(rest[0]))  # before JAX is imported, which takes seconds
        if command.second and rest[1:] and not rest[1].startswith("-"):
            word = shlex.quote(rest[1])
            raise UserError(
                f"{word} has no option before it; did you mean {command.second} {word}?"
            )
    # Never undone: Orbax's event loops may be deleted, with a message, at the process's end only.
    environment.silence()
    if command.on_cpu:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with _notes():
        call = parse(name, rest)
        call()


def parse(name: str, words: Sequence[str]) -> Callable[[], None]:
    """Turn the words of a command into a call; exit if they are wrong or ask for help."""
    from mlstm_jax.commands import parser, training

    parse_words = training.parse_with_config if COMMANDS[name].has_config else parser.parse
    return parse_words(_function(name), words, f"mlstm-jax {name}")


def _with_options(text: str, name: str) -> str:
    """A message with a command's options as the command line spells them, --text-column."""
    if name not in COMMANDS:
        return text
    return _NAMED.sub(partial(_spelled, name=name), text).replace(" or None", ", or unset")


def _spelled(found: re.Match[str], name: str) -> str:
    """What `_NAMED` has found: an option of a command as --text-column, or as it is."""
    from mlstm_jax.commands import parser, training

    option = found[1] or found[2]
    if COMMANDS[name].has_config:
        known = parser.options(_function(name), training.config_type())
        word, _, _ = option.partition(".")  # the section of a field, such as data.batch
    else:
        known = parser.options(_function(name))
        word = option
    return f"--{option.replace('_', '-')}" if word in known else found[0]


def _function(name: str) -> Callable[..., None]:
    """The function of a command, such as `import_`; its module imports neither NumPy nor JAX."""
    module = importlib.import_module(f"mlstm_jax.commands.{COMMANDS[name].module}")
    function: Callable[..., None] = getattr(module, f"{name}_" if keyword.iskeyword(name) else name)
    return function


def _usage() -> str:
    lines = ["usage: mlstm-jax COMMAND ...", ""]
    for name in COMMANDS:
        summary, _, _ = str(_function(name).__doc__).partition("\n")
        lines.append(f"  {name:<11}{summary}")
    lines += [
        "",
        "mlstm-jax COMMAND --help explains the options of a command; mlstm-jax --version.",
        "Compiled programs are cached in ~/.cache/mlstm_jax, at most 1 GB per type of processor.",
        f"Set {cache.CACHE} to another folder, or to an empty value to turn the cache off.",
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
