"""What the site adds to the pages of docs/; the notebooks, which `make docs` runs whole."""

import ast
import dataclasses
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import mlstm_jax
from mlstm_jax import config
from mlstm_jax.corpora.sources import FORMATS

ROOT = Path(__file__).parent.parent
HOOKS = runpy.run_path(str(ROOT / "docs/hooks.py"))


@pytest.mark.parametrize("section", [config.Config, config.MLSTM, config.GRU, config.Train])
def test_page_of_configs(section: type) -> None:
    page = (ROOT / "docs/api/config.md").read_text(encoding="utf-8")
    table = page.split(f"### {section.__name__}\n")[1].split("###")[0]
    shown = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert shown == [field.name for field in dataclasses.fields(section) if field.init]
    assert all(line.split(" | ")[-1].strip(" |") for line in table.splitlines()[4:] if line)


def test_pages_of_the_api() -> None:
    """Their text is equal, and no public object is missing."""
    pytest.importorskip("griffe")
    written = runpy.run_path(str(ROOT / "docs/write_api.py"))["pages"]()
    for name, text in written.items():
        stored = (ROOT / "docs/api" / name).read_text(encoding="utf-8")
        assert stored == text, f"run make api: {name}"
    headings = re.findall(r"(?m)^## (\w+)$", "\n".join(written.values()))
    assert {*mlstm_jax.__all__} - {"__version__"} <= {*headings}


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("../configs/sweeps/legw_128.py", "x"),
        ("../results/speed/README.md#prepare", "[x](results/speed.md#prepare)"),
        ("../results/scale", "[x](results/scale.md)"),
        ("../notebooks/models.ipynb", "[x](notebooks/models.md)"),
        ("runs.md#the-model", "[x](runs.md#the-model)"),
        ("https://jax.dev", "[x](https://jax.dev)"),
    ],
)
def test_links_of_a_page(link: str, shown: str) -> None:
    """Files of the repository become pages of the site, or text where there is none."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    assert HOOKS["on_page_markdown"](f"See [x]({link}).", page) == f"See {shown}."


def test_quoted_messages() -> None:
    """`…` stands for what a message fills in; the first column of a table quotes it."""
    text = ""
    for path in (ROOT / "mlstm_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text += f" {node.value}"
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"(?m)^(?:\| |- \*\*)`([^`]+)`", page)
    assert len(quoted) > 12
    for message in quoted:
        for part in message.split("…"):
            assert part.strip() in text, message


def test_tables_without_blank_lines() -> None:
    """A row after a blank line is text, unless a line of dashes makes it a header."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*/*.md")]:
        text = page.read_text(encoding="utf-8")
        lost = re.findall(r"(?m)^\|.*\|\n\n(\|.*\|)\n(?!\|-)", text)
        assert not lost, page


def test_names_in_python_blocks() -> None:
    """What the pages import of the package, and use of `mlstm`, is there."""
    pytest.importorskip("pandas", reason="mlstm_jax.analysis needs it")
    names = 0
    pages = [*ROOT.glob("*.md"), *ROOT.glob("mlstm_jax/models/*/*.md")]
    pages += [page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "api"]
    for page in pages:
        for block in re.findall(r"(?s)```python\n(.*?)```", page.read_text(encoding="utf-8")):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("mlstm_jax"):
                    exec(ast.unparse(node), {})
                    names += len(node.names)
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "mlstm":
                    names += 1
                    assert hasattr(mlstm_jax, node.attr), page
    assert names > 30


def test_fields_kinds_and_formats_of_the_pages() -> None:
    """Each field that a page names is there; each kind and suffix is named."""
    kinds = config.Architecture.kinds
    fields: set[str] = set()
    for kind in kinds.values():
        fields |= config.flatten(config.Config(model=kind())).keys()
    named = set()
    for page in ROOT.glob("docs/**/*.md"):
        found = re.findall(r"`(\w+\.\w+)[` ]", page.read_text(encoding="utf-8"))
        named |= {one for one in found if one.split(".")[0] in vars(config.Config())}
    others = {"txt", "bin", "csv", "jsonl", "py", "md", *dir(mlstm_jax.TrainedModel)}
    assert {one for one in named - fields if one.split(".")[1] not in others} == set()
    assert len(named & fields) > 30
    assert all(f"`{one}`" in (ROOT / "docs/runs.md").read_text(encoding="utf-8") for one in kinds)
    page = (ROOT / "docs/files.md").read_text(encoding="utf-8")
    assert all(f"`a{suffix}`" in page for suffix in FORMATS)


def test_outputs_of_notebooks() -> None:
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    from notebooks.store import code_digest

    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert len(paths) == 5
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
        assert notebook.metadata["executed"] == code_digest(notebook), f"run make notebooks: {path}"
        assert any("image/png" in one.get("data", {}) for one in outputs), path
        assert all(one.output_type != "error" for one in outputs), path
        assert path.stat().st_size < 400_000, path
