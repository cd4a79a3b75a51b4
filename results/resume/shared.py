"""What the programs of the peers share: examples, a small model, the log of reads, the end."""

import hashlib
import json
import os
import signal
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLES = 256
LENGTH = 16
BATCH = 8
EPOCHS = 2
SAVE_EVERY = 8  # steps; an epoch has 32
DROPOUT = float(os.environ.get("DROPOUT", "0.2"))
SEED = 1


def processes() -> int:
    """The number of processes of this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this process."""
    return int(os.environ.get("RANK", "0"))


def examples() -> Any:
    """Examples of bytes, each with its number before them: int64 [256, 17]."""
    random = np.random.default_rng(SEED)
    bytes_EL = random.integers(0, 64, (EXAMPLES, LENGTH))
    return np.concatenate([np.arange(EXAMPLES)[:, None], bytes_EL], axis=1)


class Reads:
    """A log of the examples of each step; the process kills itself at step KILL_STEP."""

    def __init__(self, folder: Path) -> None:
        """Add to the log in a folder the start of a process."""
        self._file = folder / f"reads{os.environ.get('PART', '')}.jsonl"
        self._add("start")

    def note(self, step: int, numbers: Any) -> None:
        """Add the examples that the update `step`, counted from 1, is made of."""
        self._add([step, [int(number) for number in numbers]])
        if os.environ.get("KILL_STEP") == str(step):
            os.kill(os.getpid(), signal.SIGKILL)

    def _add(self, line: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def finish(folder: Path, parameters: Mapping[str, Any]) -> None:
    """Write all parameters, and their SHA-256."""
    if rank() > 0:
        return
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(parameters[name]).tobytes())
    (folder / "digest").write_text(digest.hexdigest())
    np.savez(folder / "parameters.npz", **parameters)


def run_to_exit(program: Any, folder: Path) -> None:
    """Run a program in this forked process, and end the process."""
    code = 1
    try:
        program.run(folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
