"""Which flags of XLA the installed jaxlib knows."""

import mmap
from importlib.util import find_spec
from pathlib import Path


def unknown(flags: str) -> list[str]:
    """Return the flags, separated by spaces, that jaxlib does not know: it would end the process.

    jaxlib has no list of its flags, but its library contains their names.
    """
    package = find_spec("jaxlib")
    (library,) = Path(package.submodule_search_locations[0]).glob("libjax_common.*")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        names = {word: f"{word[2:].partition('=')[0]}\0" for word in flags.split()}
        return [word for word, name in names.items() if text.find(name.encode()) < 0]
