"""The page of `mlstm-jax view`, by HTTP and in a real browser."""

import asyncio
import contextlib
import dataclasses
import http.client
import itertools
import json
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import uvicorn

import mlstm_jax
from mlstm_jax.arrays import fingerprint
from mlstm_jax.commands import texts as command
from mlstm_jax.errors import UserError
from mlstm_jax.options import HeatmapOptions, SamplingOptions
from mlstm_jax.run import Run
from mlstm_jax.transfer.classifier import Classifier, Description, load_classifier
from mlstm_jax.transfer.features import Featurizer
from mlstm_jax.transfer.heatmap import heat, score_heat
from mlstm_jax.transfer.trace import Tracer, generate
from mlstm_jax.view import server
from mlstm_jax.view.viewer import Viewer
from tests.tables import attributes, column
from tests.tolerance import bound


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """They end with these tests: at its exit Python would wait for their threads."""
    started = []

    class Server(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            started.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn, "Server", Server)
        yield
    for one in started:
        one.should_exit = True


@pytest.fixture(scope="module")
def classifier(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    random = np.random.default_rng(0)
    made = Classifier(random.normal(size=(3, 64)), np.zeros(3), ["fair", "fine", "poor"], 1)
    about = Description("c", False, fingerprint(run.params), None)
    made._replace(about=about).save(folder)
    return folder


@pytest.fixture(scope="module")
def page(run: Run, classifier: Path) -> str:
    """Serve a page by the command; its address."""
    return address_of(partial(command.view, run.folder, classifier, port=0))


def address_of(view: Callable[[], None]) -> str:
    """Serve a page in a thread; the address that it prints."""
    said: SimpleQueue[str] = SimpleQueue()
    out: Any = SimpleNamespace(write=said.put, flush=lambda: None)
    with contextlib.redirect_stdout(out):
        threading.Thread(target=view, daemon=True).start()
        line = said.get(timeout=120)
    assert line.startswith("http://127.0.0.1:")
    return line.split()[0]


def test_method(run: Run, classifier: Path, page: str) -> None:
    """A model in Python shows the page of the command."""
    model = mlstm_jax.load(run.folder)
    other = address_of(partial(model.view, load_classifier(classifier), port=0))
    request = {"text": "It was good."}
    assert ask(f"{other}read", request) == ask(f"{page}read", request)
    assert ask(f"{other}model", {})[1]["label"] == "poor"  # it begins with the score of the last
    with server.bind("127.0.0.1", 0).socket as free:
        port = free.getsockname()[1]
    for _ in range(2):  # the first error does not keep the port, even while it is kept
        with pytest.raises(ValueError, match=r"label is 'fair', .* no class has a score"):
            model.view(label="fair", port=port)


def test_method_in_a_notebook(run: Run) -> None:
    """A notebook runs its cells inside of an event loop."""

    async def cell() -> None:
        mlstm_jax.load(run.folder).view(port=0)

    with urllib.request.urlopen(address_of(lambda: asyncio.run(cell())), timeout=60) as answer:
        assert answer.status == 200


@contextmanager
def serving(run: Run, host: str = "127.0.0.1") -> Iterator[server.Address]:
    """Serve a page by a thread; its address."""
    address = server.bind(host, 0)
    threading.Thread(target=server.serve, args=(Viewer(run, None), address), daemon=True).start()
    yield address


def ask(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | headers
    request = urllib.request.Request(url, data, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        return error.code, json.loads(text) if text.startswith("{") else text


def test_answers(page: str, run: Run, classifier: Path) -> None:
    text = "my café is good"
    chosen = load_classifier(classifier)
    rows = np.abs(chosen.weights_KD).sum(axis=1)[1]
    status, found = ask(f"{page}read", {"text": text, "unit": 7})
    assert status == 200
    assert column(found["classes"], "name") == ["fair", "fine", "poor"]
    assert sum(column(found["classes"], "probability")) == pytest.approx(1)
    assert len(found["active"]) == len(found["next"]) == 8
    _, scored = ask(f"{page}read", {"text": text, "label": "fine"})
    for shown, made, scale in (
        (found, heat(Tracer(run), text, 7), None),
        (scored, score_heat(Tracer(run), text, chosen, HeatmapOptions(label="fine")), rows),
    ):
        assert column(shown["characters"], "text") == made.texts
        values = np.array(column(shown["characters"], "value"))
        # Four decimals, of a state that two layers of three products over 64 units make.
        limit = 0.5e-4 + bound(2 * 3 * 64) * (scale or np.abs(made.values).max())
        assert np.abs(values - made.values).max() <= limit
    assert ask(f"{page}read", {"text": " ", "label": "fine"})[1]["characters"] == []
    asked = {"text": "my ", "bytes": 20, "seed": 3, "temperature": 0, "unit": 7, "value": 2}
    _, written = ask(f"{page}generate", asked)
    how = SamplingOptions(bytes=20, seed=3, temperature=0, set_unit={7: 2.0})
    (pieces,) = generate(Tracer(run), "my ", how)
    assert written["text"] == pieces[0].decode("utf-8", "replace")


@pytest.mark.parametrize(("state", "all_layers"), [("mean_h", False), ("c+mean_h", True)])
def test_classifier_of_a_mean(run, state, all_layers):
    text = "my piano is good"
    featurizer = Featurizer(run, states=(state,), all_layers=all_layers)
    width = len(featurizer.columns)
    weights = np.random.default_rng(0).normal(size=(1, width)) * 0.1
    # Unit 5 of the first layer read, of the mean of h.
    weights[0, 5 + (width // 2 if state == "c+mean_h" else 0)] = 9.0
    chosen = Classifier(weights, np.zeros(1), ["bad", "good"], 1.0)
    viewer = Viewer(run, chosen._replace(about=Description(state, all_layers, "abc", None)))
    layer = 0 if all_layers else 1
    told = viewer.model({})
    assert (told["state"], told["layer"], told["unit"]) == ("mean_h", layer, 5)
    found = viewer.read({"text": text, "unit": 5})
    shares = column(found["classes"], "probability")
    np.testing.assert_allclose(shares, chosen.probabilities(featurizer([text]))[0], atol=1e-4)
    values = column(found["characters"], "value")
    wanted = heat(Tracer(run), text, 5, HeatmapOptions(state="mean_h", layer=layer)).values
    np.testing.assert_allclose(values, wanted, atol=1e-4)
    other = viewer.read({"text": text, "unit": 5, "state": "c", "layer": 1})
    assert (other["state"], other["layer"]) == ("c", 1)


def test_bad_requests(page: str) -> None:
    for path, body, status, message in (
        ("read", b"{", 400, "not JSON"),
        ("read", b'{"text": ' + b"9" * 5000 + b"}", 400, "not JSON"),
        ("read", b"[" * 70_000, 400, "not JSON"),
        ("read", b"\xff\xfe\x00", 400, "not JSON"),
        ("read", [1], 400, "must be a JSON object"),
        ("read", {"text": 5}, 400, "text is 5"),
        ("read", {"text": "a" * 2000, "unit": 64}, 400, "unit is 64"),
        ("read", {"text": "a", "state": "z"}, 400, "state is 'z'"),
        ("read", {"text": "a", "layer": 2}, 400, "layer is 2"),
        ("read", {"text": "a", "label": "good"}, 400, "there is no score of 'good'"),
        ("read", {"text": "é" * 10_001}, 413, "longer than 20,000 bytes"),
        ("read", b'"' + b"a" * 100_000 + b'"', 413, "larger than 80,000 bytes"),
        ("generate", {"text": "a", "bytes": 10**4000}, 400, "bytes is 1000"),
        ("generate", {"text": "a", "temperature": True}, 400, "temperature is True"),
        ("generate", {"text": "a", "seed": 1.0}, 400, "seed is 1.0"),
        ("etc/passwd", {}, 404, "/etc/passwd does not exist"),
    ):
        found = ask(page + path, body)
        assert found[0] == status, found
        assert message in found[1]["error"]


def test_any_text_and_number(page: str) -> None:
    """Lone surrogates, nothing but references, and numbers that Python does not read."""
    for text in ("\ud800", "&nbsp;", "&#" + "9" * 5000 + ";", "\0\x1b", " "):
        for path in ("read", "generate"):
            status, found = ask(page + path, {"text": text, "bytes": 1})
            assert status == 200, found
            assert found.get("broken", False) == (path == "read" and text == "\ud800")
    whole = {"text": "a", "bytes": 3, "temperature": 0.7, "seed": 0, "unit": 3, "value": 1.0}
    wrong = (None, [], {"a": 1}, -1, 2**63, 10**400, 1e300, float("nan"), -float("inf"))
    for name in whole:
        for value in wrong:
            for path in ("read", "generate"):
                status, found = ask(page + path, whole | {name: value})
                assert status == 200 or (status == 400 and found["error"]), found


def filled(run: Run, value: float) -> Run:
    params = jax.tree.map(partial(np.full_like, fill_value=value), run.params)
    return dataclasses.replace(run, params=params)


def test_inf_and_nan(run: Run) -> None:
    """Weights that are finite, and what is made of them is not."""
    with serving(filled(run, 1e38)) as address:
        status, found = ask(f"{address.url}read", {"text": "a"})
    assert status == 422
    assert "computes inf or NaN here" in found["error"]
    tracer = Tracer(filled(run, np.nan))
    with pytest.raises(UserError, match="c of unit 0 of layer 1 is infinite or not a number"):
        heat(tracer, "a", 0)


def test_page_by_ipv6(run: Run) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    for host in ("::1", "[::1]", "0:0:0:0:0:0:0:1"):
        address = server.bind(host, 0)
        assert re.fullmatch(r"http://\[::1\]:[0-9]+/", address.url)
        assert address.hosts == {"[::1]", "localhost", "127.0.0.1"}
        address.socket.close()
    with serving(run, "::1") as address:
        for name in (address.url.split("/")[2], "[::1]"):
            assert ask(f"{address.url}read", {"text": "a"}, Host=name)[0] == 200
        for name in ("[::2]", "::1", "[::1", "evil[::1]", ""):
            assert ask(f"{address.url}read", {"text": "a"}, Host=name)[0] == 400


def test_limits_of_connections(run, monkeypatch) -> None:
    """In their number, and in the time in which they ask."""
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 4)
    monkeypatch.setattr(server, "_SECONDS_TO_ASK", 2.0)
    head = b"POST /read HTTP/1.1\r\nHost: localhost\r\n"
    body = b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    with serving(run) as address, contextlib.ExitStack() as stack:
        slow = []
        for sent in (head + body, head, b""):
            connection = stack.enter_context(socket.create_connection(address.socket.getsockname()))
            connection.settimeout(60)
            connection.sendall(sent)
            slow.append(connection)
        assert ask(f"{address.url}read", {"text": "a"})[0] == 503
        said = [connection.recv(1000) for connection in slow]
        assert b" 408 " in said[0]
        assert said[1:] == [b"", b""]
        slow[0].close()
        assert ask(f"{address.url}read", {"text": "a"})[0] == 200


def test_answer_without_a_reader(run: Run) -> None:
    viewer = Viewer(run, None)
    text = "a piano " * 2400

    class Gone(Exception):
        pass

    for answer, request in (
        (viewer.read, {"text": text}),
        (viewer.generate, {"text": "a", "bytes": 2000}),
    ):
        checks = itertools.count()

        def check(checks=checks) -> None:
            if next(checks):
                raise Gone

        with pytest.raises(Gone):
            answer(request, check)
        assert next(checks) == 2
    whole = viewer.read({"text": text, "unit": 3})  # is not cut short now
    assert len(whole["characters"]) == len("\n ") + len(text)


def test_logging_is_left_alone(run, tmp_path) -> None:
    """The program that shows the page may log to files, and absl to what is standard error."""
    handler = logging.FileHandler(tmp_path / "log")
    with serving(run) as address, urllib.request.urlopen(address.url, timeout=60) as answer:
        assert answer.status == 200
    assert not handler.stream.closed
    handler.close()


def test_long_text_beside_a_short_one(command_environment) -> None:
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, "-m", "mlstm_jax", "view", "--port", "0"]
    process = subprocess.Popen(command, env=command_environment, **pipe)
    assert process.stdout
    url = process.stdout.readline().split()[0]
    found: list[Any] = []

    def read_long() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            found.append(ask(f"{url}read", {"text": "a guitar. " * 2000}))

    thread = threading.Thread(target=read_long)
    thread.start()
    assert ask(f"{url}read", {"text": "a"})[0] == 200
    assert not found
    process.terminate()
    text, _ = process.communicate(timeout=60)
    thread.join()
    assert process.returncode == 128 + signal.SIGTERM, text
    assert "Traceback" not in text
    assert not found or found[0][0] == 503


def test_served_files(page: str) -> None:
    for path in ("", "view.js", "view.css"):
        with urllib.request.urlopen(page + path) as response:
            assert response.status == 200
            assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    for path in ("server.py", "../config.py", "%2e%2e/config.py", "view/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(page + path)
    with pytest.raises(urllib.error.HTTPError, match="405") as error:
        urllib.request.urlopen(f"{page}read")
    assert json.load(error.value) == {"error": "GET /read: Method Not Allowed."}
    # A site elsewhere that a name server sends here is not answered, nor a form of another page.
    elsewhere = ask(f"{page}read", {"text": "a"}, Host="evil.example")
    assert elsewhere == (400, "Invalid host header")
    assert ask(f"{page}read", {"text": "a"}, Host="localhost:1")[0] == 200
    assert ask(f"{page}read", {"text": "a"}, **{"Content-Type": "text/plain"})[0] == 415


def test_taken_and_foreign_addresses(page, run, refused) -> None:
    port = page.rstrip("/").rpartition(":")[2]
    assert f"cannot listen on 127.0.0.1:{port}" in refused("view", run.folder, "--port", port)
    assert "0 to 65535" in refused("view", run.folder, "--port", 99999)
    for host in ("", "[]", "é" * 70, "192.0.2.1", "2001:db8::1"):
        message = "cannot listen on" if host.strip("[]") else "host is empty"
        with pytest.raises(UserError, match=message):
            server.bind(host, 0)
    address = server.bind("0.0.0.0", 0)
    address.socket.close()
    assert address.hosts is None  # all addresses: any name of a host


@pytest.mark.filterwarnings("ignore")  # of the browser's driver
def test_browser(page: str) -> None:
    """One types, and sees; every request stays on this machine."""
    sync_api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    program = program or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium here; apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        sync_api.expect.set_options(timeout=60_000)  # a busy machine is slow, not wrong
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        use(page, chromium.new_page(), sync_api.expect)
        read_slowly(page, chromium.new_page(), sync_api.expect)
        chromium.close()


def use(page: str, tab: Any, expect: Any) -> None:
    asked: list[Any] = []
    errors: list[Any] = []
    console: list[Any] = []
    for event, kept in (("request", asked), ("pageerror", errors), ("console", console)):
        tab.on(event, lambda one, kept=kept: kept.append(one))
    tab.goto(page)
    expect(tab.locator("#model")).to_have_text("run, step 150: 2 × 64 units")
    expect(tab.locator("#shown")).to_have_value("3")  # the score of poor
    tab.locator("#shown").select_option("a unit")
    tab.locator("#text").press_sequentially("my piano is <b>bad</b> 12.")
    expect(tab.locator("#heat")).to_have_text("↵ my piano is <b>bad</b> 12.")
    assert tab.locator("#heat b").count() == 0
    assert tab.locator("#classes li").count() == 3
    assert tab.locator("#active li").count() == 8
    assert "-" not in (tab.locator("#active").text_content() or "-")  # a minus sign
    assert tab.locator("#next li").count() == 8
    tab.locator("#shown").select_option("score of fine")
    expect(tab.locator("#heat ruby")).to_have_count(5)
    expect(tab.locator("#high")).to_contain_text("log-odds")
    digits = tab.locator("#heat rt").all_text_contents()
    assert re.fullmatch(r"([+−][0-9]+\.[0-9]){5}", "".join(digits))
    tab.locator("#active button").first.click()  # shows the unit in place of the score
    expect(tab.locator("#shown")).to_have_value("")
    expect(tab.locator("#heat ruby")).to_have_count(0)
    expect(tab.locator("#meaning")).to_contain_text("the cell state")
    tab.locator("#unit").fill("5000")
    tab.locator("#unit").blur()
    expect(tab.locator("#error")).to_contain_text("unit is 5000, but")
    # Keys that come faster than any rest, until they are shown all the same; the scale is kept.
    tab.evaluate(
        """() => { const box = document.getElementById("text"); let n = 0;
        const heat = document.getElementById("heat");
        const timer = setInterval(() => {
          if (heat.textContent.length > 30 || n == 1000) { clearInterval(timer); return; }
          box.value += "a"; n += 1; box.dispatchEvent(new Event("input")); }, 40); }"""
    )
    expect(tab.locator("#heat")).to_have_text(re.compile(".{31}"))
    typed = tab.locator("#text").input_value()
    assert len(typed) < 1000  # one was still typing
    expect(tab.locator("#text")).to_have_value(typed)
    expect(tab.locator("#heat")).to_have_text(f"↵ {typed}")
    tab.locator("#text").fill("my piano is <b>bad</b> 12.")
    expect(tab.locator("#heat")).to_have_text("↵ my piano is <b>bad</b> 12.")
    active = tab.locator("#active button")
    listed = active.all_text_contents()
    tab.locator("#state").select_option("mean_h")
    expect(active).not_to_have_text(listed)
    tab.locator("#state").select_option("c")
    expect(active).to_have_text(listed)  # until then a click may be of the other list
    before = tab.locator("#heat span").nth(5).get_attribute("style")
    active.nth(3).click()
    expect(tab.locator("#unit")).to_have_value(listed[3])
    expect(tab.locator("#held")).to_have_text(listed[3])
    expect(tab.locator("#heat span").nth(5)).not_to_have_attribute("style", before)
    tab.locator("#hold").check()
    tab.locator("#bytes").fill("30")
    tab.locator("#generate").click()
    expect(tab.locator("#written")).to_contain_text("my piano is <b>bad</b> 12.")
    assert len(tab.locator("#written").text_content() or "") > 45
    tab.locator("#text").fill("another text")
    expect(tab.locator("#written")).to_have_text("")
    assert errors == []
    for request in asked:
        assert request.url.startswith(page)
    for line in console:
        assert line.type != "error" or "400" in line.text


def read_slowly(page: str, tab: Any, expect: Any) -> None:
    """What is shown of an older text is pale until the newest is read, which does not wait."""
    tab.goto(page)
    tab.locator("#shown").select_option("a unit")
    tab.locator("#text").fill("one")
    expect(tab.locator("#heat")).to_have_text("↵ one")
    busy = tab.locator(".busy")
    expect(busy).to_be_hidden()
    held: list[Any] = []
    tab.route("**/read", lambda route: held.append(route))
    for text in ("two", "three"):
        tab.locator("#text").fill(text)
        expect(busy).to_be_visible()
        expect(tab.locator("#heat")).to_have_text("↵ one")
        expect(tab.locator("#heat")).to_have_css("opacity", "0.3")
        tab.wait_for_timeout(1300)  # more than the patience with the first
    first, second = attributes(held, "request")
    assert first.post_data_json["text"] == "two"
    assert second.post_data_json["text"] == "three"
    held[1].continue_()
    expect(tab.locator("#heat")).to_have_text("↵ three")
    expect(busy).to_be_hidden()
    expect(tab.locator("#heat")).to_have_css("opacity", "1")
