"""Change whole files at random and import them: ``python -m tests.interop.fuzz KIND FOLDER``.

Every import ends well or in a KnownError, within `_SECONDS` and `_MEMORY`. Prints the number of
each as JSON; on anything else the seed of the change is told. A process of its own, because the
limit on memory cannot be taken back.
"""

import json
import random
import re
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mlstm_jax.errors import KnownError
from mlstm_jax.interop import published, weights
from mlstm_jax.interop.weights import ModelWeights
from mlstm_jax.transfer import classifier_file, classify
from mlstm_jax.transfer.words import Words
from tests.interop.test_weights import write_openai, write_unirep

_TRIES = 400
_SECONDS = 5
_MEMORY = 512 << 20  # beside what the libraries took
_NUMBERS = (0, 1, -1, 2, 255, 2**16, 10**7, 2**31, 2**63, 10**12, 10**30, "1e400", "true", '"1"')


class TooSlow(BaseException):
    """Not an Exception, which an importer may catch."""


def make(kind: str, folder: Path) -> tuple[list[Path], Callable[[], object]]:
    """Write a whole model; return its files and what imports it."""
    generator = np.random.default_rng(0)
    if kind == "openai":
        write_openai(folder / "o", generator)
        return sorted((folder / "o").iterdir()), lambda: published.read_openai(folder / "o")
    if kind == "unirep":
        write_unirep(folder / "u", generator, 2)
        return sorted((folder / "u").iterdir()), lambda: published.read_unirep(folder / "u")
    if kind == "classifier":
        made = classify.Classifier(generator.normal(size=(3, 5)), np.zeros(3), ["a", "b", "c"], 1.0)
        made = made._replace(words=Words(["a", "b"], np.ones(2), np.ones((3, 2)), np.ones(3)))
        classifier_file.save(folder, made, classifier_file.Description("c", False, "abc", None))
        names = ("classifier.json", "classifier.safetensors")
        return [folder / name for name in names], lambda: classifier_file.load_classifier(folder)
    write_openai(folder / "o", generator)
    path = folder / f"m.{kind}"
    weights.save(path, published.read_openai(folder / "o"))
    return [path], lambda: weights.load_weights(path)


def change(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content))
    near = draw.randrange(min(len(content), 400))  # most headers are in front
    kind = draw.randrange(6)
    if kind == 0:
        return content[:at]
    if kind == 1:
        changed = bytearray(content)
        for _ in range(draw.randrange(1, 9)):
            changed[draw.choice((at, near))] ^= 1 << draw.randrange(8)
            near = draw.randrange(min(len(content), 400))
        return bytes(changed)
    if kind == 2:
        numbers = list(re.finditer(rb"[0-9]+", content))
        if numbers:
            start, end = draw.choice(numbers[:60]).span()
            return content[:start] + str(draw.choice(_NUMBERS)).encode() + content[end:]
    if kind == 3:
        return content[:near] + draw.randbytes(draw.randrange(1, 40)) + content[near:]
    if kind == 4:
        return content[:near] + content[near + draw.randrange(1, 40) :]
    deep = draw.choice((b"[", b"(", b"{", b'{"a":', b"-")) * draw.choice((10, 1000, 100_000))
    return content[:near] + deep + content[near:]


def check(found: object) -> None:
    if isinstance(found, ModelWeights):
        flat = weights.flatten(found.params)
        shapes = {name: array.shape for name, array in flat.items()}
        assert shapes == weights.expected_shapes(found.model)
        assert all(np.isfinite(array).all() for array in flat.values())


def stop(*_: object) -> None:
    raise TooSlow


def main(kind: str, folder: Path) -> None:
    files, load = make(kind, folder)
    whole = {path: path.read_bytes() for path in files}
    check(load())  # and everything is imported that will be
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, stop)
    outcomes: Counter[str] = Counter(imported=0, refused=0)
    longest = 0
    for seed in range(_TRIES):
        draw = random.Random(seed)
        path = draw.choice(files)
        path.write_bytes(change(whole[path], draw))
        signal.alarm(_SECONDS)
        try:
            check(load())
            outcomes["imported"] += 1
        except KnownError as error:
            outcomes["refused"] += 1
            longest = max(longest, len(str(error)))
        except BaseException:
            traceback.print_exc()
            sys.exit(f"{kind}, seed {seed}, {path.name}")
        finally:
            signal.alarm(0)
        path.write_bytes(whole[path])
    print(json.dumps(outcomes | {"longest_message": longest}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
