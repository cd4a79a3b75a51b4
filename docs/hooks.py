"""What the site adds to the Markdown of a page: links into the repository, and fields of configs.

A link to a notebook becomes one to its rendered page; a link to any other file outside docs/
becomes its text. `<!-- fields of a config -->` becomes tables of the dataclasses in
mlstm_jax/config.py, whose descriptions are the comments above the fields.
"""

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

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
        config = Path(__file__).parent.parent / "mlstm_jax/config.py"
        markdown = markdown.replace(_FIELDS, _tables(config.read_text(encoding="utf-8")))
    return markdown


def _tables(source: str) -> str:
    lines, parts = source.splitlines(), []
    for section in ast.parse(source).body:
        if not isinstance(section, ast.ClassDef):
            continue
        parts.append(f"\n### {section.name}\n\n| field | default | |\n|---|---|---|")
        for field in section.body:
            if isinstance(field, ast.AnnAssign):
                name, kind = ast.unparse(field.target), ast.unparse(field.annotation)
                default = f"`{ast.unparse(field.value)}`" if field.value else "none"
                meaning = _comment(lines, field.lineno - 1).replace("|", r"\|")
                parts.append(f"| `{name}`: `{kind}` | {default} | {meaning} |")
    return "\n".join(parts)


def _comment(lines: list[str], at: int) -> str:
    """Return the comment that ends above a line."""
    first = at
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(line.strip().removeprefix("#").strip() for line in lines[first:at])
