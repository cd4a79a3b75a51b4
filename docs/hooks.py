"""What the site adds to the Markdown of a page: links into the repository, and fields of configs.

A link to a notebook becomes one to its rendered page; a link to any other file outside docs/
becomes its text. `<!-- fields of a config -->` becomes tables of the sections of a config, whose
descriptions are the comments above the fields.
"""

import ast
import dataclasses
import inspect
import posixpath
import re
from typing import Any

from mlstm_jax import config
from mlstm_jax.model.architecture import Architecture

_OUTSIDE = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\.?/[^)\s]+)\)")
_FIELDS = "<!-- fields of a config -->"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's text with links and tables in place."""
    folder = posixpath.dirname(page.file.src_uri)

    def replace(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        notebook = re.fullmatch(r"\.\./notebooks/(\w+)\.ipynb", target)
        if notebook:
            return f"[{link[1]}]({posixpath.relpath('notebooks', folder or '.')}/{notebook[1]}.md)"
        return link[1] if target.startswith("../") else link[0]

    markdown = _OUTSIDE.sub(replace, markdown)
    if _FIELDS in markdown:
        markdown = markdown.replace(_FIELDS, _tables())
    return markdown


def _tables() -> str:
    sections = (
        config.Config,
        *Architecture.kinds.values(),
        config.Data,
        config.Optimizer,
        config.Precision,
        config.Train,
        config.Devices,
        config.Distributed,
        config.Phase,
    )
    parts = []
    for section in sections:
        parts.append(f"\n### {section.__name__}\n\n| field | default | |\n|---|---|---|")
        rows: dict[str, str] = {}
        for kind in reversed(section.__mro__):
            if dataclasses.is_dataclass(kind):
                rows |= _rows(kind)
        chosen = [field.name for field in dataclasses.fields(section) if field.init]
        parts += [rows[name] for name in chosen]
    return "\n".join(parts)


def _rows(section: type) -> dict[str, str]:
    """Return the lines of a table for the fields that a class itself declares, by name."""
    source = inspect.getsource(section)
    lines, rows = source.splitlines(), {}
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for field in tree.body:
        if isinstance(field, ast.AnnAssign):
            name, kind = ast.unparse(field.target), ast.unparse(field.annotation)
            default = f"`{ast.unparse(field.value)}`" if field.value else "none"
            meaning = _comment(lines, field.lineno - 1).replace("|", r"\|")
            rows[name] = f"| `{name}`: `{kind}` | {default} | {meaning} |"
    return rows


def _comment(lines: list[str], at: int) -> str:
    """Return the comment that ends above a line."""
    first = at
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(line.strip().removeprefix("#").strip() for line in lines[first:at])
