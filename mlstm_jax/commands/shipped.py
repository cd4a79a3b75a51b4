"""Commands for files that come with the package: quickstart, configs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

from tyro.conf import Positional, arg

from mlstm_jax import output, shipped
from mlstm_jax.commands import training
from mlstm_jax.config import text as config_text
from mlstm_jax.errors import UserError, nearest, question
from mlstm_jax.terminal import show

_HEADINGS: dict[shipped.Kind, str] = {
    "config": "configs, for train, plan and schedule",
    "sweep": "sweeps, for sweep",
    "machine": "machines, for plan --machine",
    "flags": 'flags for XLA on GPUs, as XLA_FLAGS="$(mlstm-jax configs NAME)"',
    "model": "models, wherever a RUN is expected; `mlstm-jax configs NAME` prints the card",
}


def quickstart(arguments: Sequence[str], program: str) -> None:
    """Train a small model on Python's own documentation and report; about two minutes."""
    named, _ = config_text.split_config(arguments)
    if named is not None:
        raise UserError(
            f"quickstart always uses its own config; train another with `mlstm-jax train {named}`."
        )
    training.train(arguments, program)


def configs(
    name: Annotated[str | None, Positional, arg(metavar="NAME")] = None,
    out: Path | None = None,
    overwrite: bool = False,
) -> None:
    """List what comes with the package, configs to models; print or copy one of them.

    Commands accept these names wherever they expect such a file.

    Args:
        name: the file to print or copy; unset: list all.
        out: folder to copy it into, or name of the new file; unset: print it.
        overwrite: replace that file if it exists.
    """
    if name is None:
        if out is not None:
            raise UserError(
                "--out needs the NAME of a file to copy; `mlstm-jax configs` lists all names."
            )
        _show_list()
        return
    known = shipped.files()
    if name not in known:
        near = question(nearest(name, known)) or "."
        raise UserError(
            f"the package has no config, sweep, machine, flags or model {name!r}{near} "
            "`mlstm-jax configs` lists all names."
        )
    source = known[name]
    if out is None:
        sys.stdout.write(source.read_text(encoding="utf-8"))
        return
    if not out.is_dir() and out.suffix != source.suffix:
        raise UserError(
            f"--out {out}: the folder does not exist; create it, or give a file that ends in "
            f"{source.suffix}."
        )
    target = out / source.name if out.is_dir() else out
    output.require_file(target, overwrite=overwrite)
    with output.write_errors(target):
        output.write_text(target, source.read_text(encoding="utf-8"))
    show(f"written: {target}")


def _show_list() -> None:
    width = max(map(len, shipped.files()))
    for kind in get_args(shipped.Kind):
        show(f"{_HEADINGS[kind]}:")
        for name, path in shipped.files(kind).items():
            show(f"  {name:<{width}}  {shipped.summary(path)}")
        show("")
    show("`mlstm-jax configs NAME` prints a file; `mlstm-jax configs NAME --out .` copies it.")
