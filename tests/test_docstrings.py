"""Public docstrings name what is taken, returned and raised, and every field; examples run."""

import dataclasses
import doctest
import importlib
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docstring_parser
import pytest

import mlstm_jax as mlstm
from mlstm_jax import config
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.planning import Row
from mlstm_jax.run import Run
from mlstm_jax.training.evaluation import Score
from mlstm_jax.training.sweep import RunSummary
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.transfer.experiment import Result
from mlstm_jax.transfer.finetune import Finetuned
from mlstm_jax.transfer.heatmap import Heatmap
from mlstm_jax.transfer.trace import Stream
from mlstm_jax.transfer.transfer import Transferred

PUBLIC = sorted({*mlstm.__all__} - {"__version__"})
MODULES = ["analysis", "layers"]
SECTIONS = [config.Data, config.Optimizer, config.Precision, config.Train, config.Devices]
RESULTS = [Classifier, Corpus, Finetuned, Heatmap, Result, Row, RunSummary, Score, Transferred]


def parsed(of: Any) -> docstring_parser.Docstring:
    return docstring_parser.parse(inspect.getdoc(of) or "")


def described(of: Any) -> set[str]:
    """The names of arguments or fields; one line may describe several."""
    return {name for one in parsed(of).params for name in one.arg_name.split(", ")}


def public(name: str) -> Any:
    if name == "analysis":
        pytest.importorskip("pandas")
    return importlib.import_module(f"mlstm_jax.{name}") if name in MODULES else getattr(mlstm, name)


def bases(of: type) -> list[type]:
    """A class and its bases in the package, the lowest first."""
    return [one for one in reversed(of.__mro__) if one.__module__.startswith("mlstm_jax")]


def members(of: Any) -> dict[str, Any]:
    """The public members of a module, or of a class and those that it is made of."""
    found = {}
    for part in bases(of) if inspect.isclass(of) else [of]:
        for name, member in vars(part).items():
            module = str(getattr(member, "__module__", None))
            is_own = inspect.isclass(of) or module.startswith(of.__name__)
            if is_own and not name.startswith("_"):
                found[name] = member
    return found


def functions(of: Any) -> Iterator[Any]:
    """A function itself; the public methods of a class, and functions of a module."""
    if inspect.isfunction(of):
        yield of
        return
    yield from filter(inspect.isfunction, members(of).values())


def require_complete(function: Any) -> None:
    """What is taken, returned, and raised by the function itself is named."""
    name = function.__qualname__
    signature = inspect.signature(function)
    taken = {*signature.parameters} - {"self"}
    assert taken <= described(function), name
    sections = parsed(function)
    is_nothing = signature.return_annotation in (None, "None")
    assert is_nothing or sections.returns, f"{name}: Returns"
    raises = re.search(r"\n +(raise |require\w*\()", inspect.getsource(function))
    assert not raises or sections.raises, f"{name}: Raises"


@pytest.mark.parametrize("name", [*PUBLIC, *MODULES])
def test_functions(name: str) -> None:
    of = public(name)
    for function in functions(of):
        require_complete(function)
    if dataclasses.is_dataclass(of):
        assert {field.name for field in dataclasses.fields(of)} <= described(of)


@pytest.mark.parametrize("function", [Heatmap.save, Stream.feed, config.load_file])
def test_functions_of_results(function: Any) -> None:
    require_complete(function)


@pytest.mark.parametrize("kind", SECTIONS + RESULTS)
def test_fields(kind: type) -> None:
    assert {*inspect.get_annotations(kind)} == described(kind)


@pytest.fixture(scope="module")
def folder(run: Run, text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples name: reviews.csv, corpora/mine, runs/mine and rates."""
    made = tmp_path_factory.mktemp("examples")
    shutil.copytree(run.folder, made / "runs/mine")
    shutil.copytree(run.folder, made / "rates/Adam/16")
    (made / "corpora").mkdir()
    (made / "corpora/mine").symlink_to(run.config.data.corpus)
    texts = text_file.read_text(encoding="utf-8").splitlines()[:60]
    lines = [f"{text},{'bad' if 'bad' in text else 'good'}" for text in texts]
    (made / "reviews.csv").write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    return made


def examples_of(name: str) -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    if name in MODULES:
        module = public(name)
        first = finder.find(module, name)[0]  # the module's own, which the others assume
        others = []
        for member, of in members(module).items():
            others += finder.find(of, member, module=inspect.getmodule(of))
        doctest.DocTestRunner().run(first, clear_globs=False)
        for one in others:
            one.globs |= first.globs
        yield from (first, *others)
        return
    values = {"mlstm": mlstm, "model": mlstm.load("sentiment")}
    of = public(name)
    for part in bases(of) if inspect.isclass(of) else [of]:
        yield from finder.find(part, name, globs=values)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*PUBLIC, *MODULES])
def test_examples(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ("TrainedModel", "analysis", "plot_metrics"):
        pytest.importorskip("pandas")
    monkeypatch.chdir(folder)
    found = [one for one in examples_of(name) if one.examples]
    assert found, "no example"
    for one in found:
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(one)
        assert result.failed == 0, one.name
