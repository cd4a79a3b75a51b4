"""Write the pages of docs/api/ from signatures and docstrings: python docs/write_api.py

`make api` runs it. The pages are stored, so that the repository shows them; tests/test_docs.py
compares them with the code.
"""

import ast
import dataclasses
import inspect
from itertools import chain
from pathlib import Path

import docstring_parser
import griffe

from mlstm_jax import config
from mlstm_jax.model.architecture import Architecture

ROOT = Path(__file__).parent.parent
# The pages: name, title, and the objects with their public methods.
PAGES = {
    "model": ("A model", ["load", "TrainedModel", "transfer.trace.Stream"]),
    "scikit_learn": ("Estimators for scikit-learn", ["Features", "FineTuned"]),
    "functions": (
        "What the commands do",
        ["prepare", "PrepareOptions", "inspect", "train", "sweep", "plan", "import_weights"],
    ),
    "options": (
        "Options of a model's methods, and pictures of runs",
        ["SamplingOptions", "HeatmapOptions", "TransferOptions", "FinetuneOptions", "plot_metrics"],
    ),
    "config": ("Configs", ["Config", "vary", "config.load_file"]),
}
_WRITTEN = "<!-- docs/write_api.py wrote this page. -->"
_WIDTH = 88  # of a signature on one line


def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    options = {"docstring_parser": griffe.Parser.google}
    package = griffe.load("mlstm_jax", search_paths=[ROOT], **options)
    texts = {}
    for name, (title, paths) in PAGES.items():
        parts = [f"# {title}", _WRITTEN]
        for path in paths:
            parts += _object(_resolved(package, path))
        if name == "config":
            parts.append("## Fields of a config")
            parts.append(
                "The field `data.batch` is the option `--data.batch` of a command and the "
                "argument `data__batch` of `vary`."
            )
            parts += _sections()
        texts[f"{name}.md"] = "\n\n".join(parts) + "\n"
    return texts


def _resolved(package: griffe.Object, path: str) -> griffe.Object:
    found = package[path]
    while found.is_alias:
        found = found.final_target
    return found


def _object(found: griffe.Object) -> list[str]:
    """The parts of a page about a function, or a class and its methods."""
    parts = [f"## {found.name}"]
    if found.is_function:
        return [*parts, _signature(found), *_docstring(found)]
    constructor = found.members.get("__init__")
    if constructor and constructor.docstring is None:  # Others say what to call instead.
        parts.append(_signature(constructor, found.name))
    parts += _docstring(found)
    bases = [*reversed(found.mro()), found]
    for member in chain.from_iterable(one.members.values() for one in bases):
        is_documented = member.docstring is not None and not member.name.startswith("_")
        if not is_documented or member.is_alias:
            continue
        parts.append(f"### {found.name}.{member.name}")
        if member.is_function:
            parts.append(_signature(member))
        parts += _docstring(member)
    return parts


def _signature(function: griffe.Object, name: str | None = None) -> str:
    """A signature as code: on one line, or with one parameter a line."""
    shown = []
    star = False
    for parameter in function.parameters:
        if parameter.name == "self":
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not star:
            shown.append("*")
            star = True
        text = parameter.name
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None:
            text += f" = {parameter.default}"
        shown.append(text)
    returns = ""
    if function.returns is not None and name is None:
        returns = f" -> {function.returns}"
    name = name or function.name
    code = f"{name}({', '.join(shown)}){returns}"
    if len(code) > _WIDTH:
        lines = "".join(f"    {one},\n" for one in shown)
        code = f"{name}(\n{lines}){returns}"
    return f"```python\n{code}\n```"


def _docstring(found: griffe.Object) -> list[str]:
    """The parts of a docstring, with its sections as lists."""
    parts = []
    for section in found.docstring.parsed if found.docstring else []:
        kind = section.kind.value
        if kind == "text":
            parts.append(_as_text(section.value))
        elif kind == "examples":
            for part, text in section.value:
                is_code = part.value == "examples"
                parts.append(f"```python\n{text}\n```" if is_code else _as_text(text))
        else:
            title = {"parameters": "Arguments"}.get(kind, kind.capitalize())
            lines = [_item(kind, one) for one in section.value]
            parts.append(f"**{title}**\n\n" + "\n".join(lines))
    return parts


def _item(kind: str, one: griffe.DocstringElement) -> str:
    """A line of a list."""
    text = _as_text(one.description)
    if kind == "raises":
        return f"- `{one.annotation}`: {text}"
    if kind == "returns":
        return f"- {text}"
    names = one.name.replace(", ", "`, `")  # several may be described together
    return f"- `{names}`: {text}"


def _as_text(text: str) -> str:
    """Markdown without the line breaks of the source, and with ``code`` as `code`."""
    paragraphs = text.replace("``", "`").split("\n\n")
    kept = []
    for paragraph in paragraphs:
        if paragraph.lstrip().startswith("- "):
            kept.append(paragraph)
        else:
            kept.append(" ".join(paragraph.split()))
    return "\n\n".join(kept)


def _sections() -> list[str]:
    """A table for each section of a config."""
    sections = (
        config.Config,
        *Architecture.kinds.values(),
        config.Data,
        config.Optimizer,
        config.Precision,
        config.Train,
        config.Devices,
        config.Distributed,
    )
    parts = []
    for section in sections:
        parts.append(f"### {section.__name__}")
        rows: dict[str, str] = {}
        for kind in reversed(section.__mro__):
            if dataclasses.is_dataclass(kind):
                rows |= _rows(kind)
        chosen = [rows[field.name] for field in dataclasses.fields(section) if field.init]
        parts.append("\n".join(["| field | default | |", "|---|---|---|", *chosen]))
    return parts


def _rows(section: type) -> dict[str, str]:
    """The lines of a table for the fields that a class itself declares, by name."""
    meanings = {
        one.arg_name: one.description for one in docstring_parser.parse(section.__doc__).params
    }
    rows = {}
    (tree,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(tree, ast.ClassDef)
    for field in tree.body:
        if isinstance(field, ast.AnnAssign):
            name = ast.unparse(field.target)
            kind = ast.unparse(field.annotation).replace("|", r"\|")
            default = f"`{ast.unparse(field.value)}`" if field.value else "none"
            meaning = " ".join(meanings.get(name, "").split()).replace("|", r"\|")
            rows[name] = f"| `{name}`: `{kind}` | {default} | {meaning} |"
    return rows


def main() -> None:
    """Write the pages."""
    folder = ROOT / "docs/api"
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
