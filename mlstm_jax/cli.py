"""The `mlstm-jax` command: run the subcommand, and turn errors into messages and exit codes.

Exit codes: 0 success, 1 failure (such as a run that diverged, or a full disk), 2 a mistake in the
input, 130 interrupted (Ctrl-C), 143 terminated.

Little is imported at the top, so that Ctrl-C during the imports is caught, too.
"""

import atexit
import os
import signal
import sys
from collections.abc import Sequence

from mlstm_jax import terminal
from mlstm_jax.errors import KnownError, explained
from mlstm_jax.guard import Interrupted, interruptible


def main(arguments: Sequence[str] | None = None, program: str | None = None) -> None:
    """Run the command line and exit."""
    terminal.open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    prefix = "mlstm-jax" if words[0].startswith("-") else f"mlstm-jax {words[0]}"
    error: KnownError | None = None
    code: object = None
    try:
        with interruptible(signal.SIGINT):
            from mlstm_jax.commands import parser

            parser.run(words, program)
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
        print(
            f"{prefix}: {terminal.message(error.for_command or error)}", file=sys.stderr, flush=True
        )
    if isinstance(error, Interrupted) and arguments is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # A second one ends the process at once.
        # An interrupted DuckDB may keep objects of Python, and would list them as leaks, in forty
        # lines, when the interpreter is finalised. All else that runs at exit runs.
        atexit._run_exitfuncs()
        os._exit(error.exit_code)
    if code is not None:
        sys.exit(code)  # type: ignore[arg-type]


def _discard_output() -> None:
    """Send what is left in the buffer of standard output, and whatever follows, nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
