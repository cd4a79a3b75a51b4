"""The page without a server, in a real browser, beside what the server answers."""

import contextlib
import dataclasses
import functools
import http.server
import itertools
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlstm_jax import cli
from mlstm_jax.corpora.documents import prompt_bytes
from mlstm_jax.run import Run
from mlstm_jax.transfer.classifier_file import Description, DomainLimit
from mlstm_jax.transfer.classify import Classifier
from mlstm_jax.view.viewer import Viewer, read_runtime, write_page
from tests.tolerance import bound
from tests.transfer.test_view import browser, classifier, use_in_a_browser

__all__ = ["classifier"]

WEB = "MLSTM_JAX_ONNXRUNTIME_WEB"
TEXTS = [
    "my café is good",
    "a",
    "my café is bad; 日本の🎸 &amp; &notit; &#1;&#x80;&#0;</textarea>",
    "",
    "\x1c\n x\r\ny\ud800 \ufeff",
    "this guitar strap works as expected " * 6,
    "Bz*",
]


@pytest.fixture(scope="module")
def runtime() -> Path:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    if not (path := Path(os.environ.get(WEB, "?"))).is_file():
        pytest.skip(f"{WEB} does not name the .tgz of `npm pack onnxruntime-web`")
    return path


@contextlib.contextmanager
def hosted(folder: Path) -> Iterator[str]:
    """Serve a folder as any static server does; its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def linear(classes: list[str], width: int, **more: Any) -> Classifier:
    draw = np.random.default_rng(0)
    rows = 1 if len(classes) == 2 and "thresholds" not in more else len(classes)
    return Classifier(draw.normal(size=(rows, width)), draw.normal(size=rows), classes, 1.0, **more)


NAMES = ["fair", "fine", "poor"]
KINDS: dict[str, tuple[Any, Classifier | None, Any, bool]] = {
    "no classifier": ("none", None, "c", False),
    "two classes": ("radford", linear(NAMES[:2], 256), "c+mean_h", True),
    "three classes": ("radford", linear(NAMES, 64), "mean_h", False),
    "softmax": ("protein", linear(NAMES, 128, softmax=True), "h", True),
    "labels": ("none", linear(NAMES, 64, thresholds=[0.2, 0.9, 0.5]), "c", False),
}


@pytest.mark.filterwarnings("ignore")  # of the browser's driver
def test_it_answers_as_the_server_does(run: Run, runtime: Path, tmp_path: Path) -> None:
    """Any kind of classifier and cleaning; they are in model.json, the model is the same."""
    write_page(tmp_path / "out", Viewer(run, None), read_runtime(runtime))
    unlike = set()
    with browser() as chromium, hosted(tmp_path / "out") as address:
        for cleaning, chosen, state, all_layers in KINDS.values():
            about = Description(state, all_layers, "abc", None, DomainLimit(2.0, 8.0))
            viewer = Viewer(dataclasses.replace(run, cleaning=cleaning), chosen, about)
            (tmp_path / "out/model.json").write_text(json.dumps(viewer.knowledge()))
            tab = chromium.new_page()
            tab.goto(address)
            module = tab.evaluate_handle("() => import('./ask.js')")
            places: list[Any] = [(0, "c", 7, None), (1, "h", 63, None), (1, "mean_h", None, None)]
            places += [(1, "c", 0, name) for name in viewer.model({})["scores"]]
            for text, place in itertools.product(TEXTS, places):
                body = dict(zip(("layer", "state", "unit", "label"), place, strict=True))
                body |= {"text": text}
                found = module.evaluate("(module, body) => module.ask('read', body)", body)
                unlike.add(found["unlike"])
                assert_same(found, viewer.read(body), limits(viewer, text, chosen, body["label"]))
            body = {"text": "my ", "bytes": 70, "seed": 3, "temperature": 0, "unit": 7, "value": 2}
            found = module.evaluate("(module, body) => module.ask('generate', body)", body)
            assert found == viewer.generate(body)
            tab.close()
    assert unlike == {True, False}


def limits(
    viewer: Viewer, text: str, chosen: Classifier | None, label: str | None
) -> dict[str, float]:
    """How far the numbers of an answer may differ."""
    read = prompt_bytes(text, viewer.run.cleaning)
    states = [viewer._reader(read, "c", layer).values_TH for layer in (0, 1)]
    # Two layers of three products over 64 units.
    rounding = bound(2 * 3 * 64) * max(1.0, np.abs(states).max())
    # Of features, and so of scores and logits; a share of 1 changes by no more than twice those.
    score = rounding * np.abs(chosen.weights_KD).sum(axis=1).max() if chosen else 0.0
    logit = rounding * np.abs(viewer.run.params["decoder_kernel"]).sum(axis=0).max()
    # Of two numbers, each is rounded to four decimals.
    values = 1e-4 + (score if label else rounding)
    return {
        "characters": values,
        "active": 1e-4 + rounding,
        "classes": 2 * score,
        "next": 2 * logit,
    }


def assert_same(found: Any, expected: Any, limits: dict[str, float]) -> None:
    for name, limit in limits.items():
        field = "value" if name in ("characters", "active") else "probability"
        pairs = [
            (a.pop(field), b.pop(field)) for a, b in zip(found[name], expected[name], strict=True)
        ]
        # Units of about the same size change places, and signs with them.
        pairs = [(abs(a), abs(b)) for a, b in pairs] if name == "active" else pairs
        assert all(abs(a - b) <= limit for a, b in pairs), (name, limit)
    for each in (found, expected):
        del each["active"], each["next"]
    assert found == expected


@pytest.mark.filterwarnings("ignore")  # of the browser's driver
def test_the_page_is_used_as_the_served_one(run, classifier, runtime, tmp_path) -> None:
    """It asks nothing but its own folder."""
    with tarfile.open(runtime) as package:
        package.extractall(tmp_path, filter="data")
    words = ["view", run.folder, "--classifier", classifier, "--static", tmp_path / "out"]
    cli.main([str(word) for word in (*words, "--onnxruntime", tmp_path / "package")])
    with hosted(tmp_path / "out") as address:
        use_in_a_browser(address)


def test_what_is_missing_is_named(run, tmp_path, refused, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused("view", run.folder, "--static", "out")
    assert "type `npm pack onnxruntime-web@" in said
    (tmp_path / "package").mkdir()
    (tmp_path / "whole.tgz").write_bytes(b"x" * 9999)
    with tarfile.open("other.tgz", "w:gz") as archive:
        archive.add(__file__, "package/package.json")
    (tmp_path / "cut.tgz").write_bytes((tmp_path / "other.tgz").read_bytes()[:-2000])
    for name in ("package", "whole.tgz", "other.tgz", "cut.tgz", "none.tgz"):
        said = refused("view", run.folder, "--static", "out", "--onnxruntime", name)
        assert f"{name}: is not onnxruntime-web (" in said
    said = refused("view", run.folder, "--static", tmp_path, "--onnxruntime", "other.tgz")
    assert "exists; choose another folder with --static" in said
    assert not (tmp_path / "out").exists()
