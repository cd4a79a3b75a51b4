"""The server of the page: the model is loaded once, each request is one text.

It answers to this machine alone unless it is told otherwise, serves the page's own three files and
nothing else of the disk, and takes JSON of a limited size.
"""

import json
import re
import reprlib
import socket
import sys
import threading
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from mlstm_jax.data.documents import clean
from mlstm_jax.errors import UserError
from mlstm_jax.run import Run
from mlstm_jax.transfer.classify import Classifier, Description
from mlstm_jax.transfer.features import State
from mlstm_jax.transfer.generate import as_text, generate, prompt_bytes
from mlstm_jax.transfer.reader import Reader, characters

MOST_BYTES = 20_000  # of a text
_MOST_BODY = 4 * MOST_BYTES  # JSON may write a byte as several
_MOST_GENERATED = 2000
_SHOWN = 8  # active units, and bytes to come

# What the empty page suggests to write.
_EXAMPLE = "This guitar strap is"
_EXAMPLES = {"protein": "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"}

_PAGE = Path(__file__).parent
_FILES = {"/": "index.html", "/view.js": "view.js", "/view.css": "view.css"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class BadRequest(Exception):
    """What a request asks makes no sense; the message is for who wrote it."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Viewer:
    """Answers the page's questions; one at a time."""

    def __init__(
        self, run: Run, classifier: Classifier | None, about: Description | None = None
    ) -> None:
        """Take a model, and a classifier with what features it reads."""
        model = run.config.model
        self._run, self._classifier, self._reader = run, classifier, Reader(run)
        self._state: State = about.state if about else "c"
        self._lowest = 0 if about and about.all_layers else model.layers - 1
        self._layer, self._unit = model.layers - 1, None
        if classifier:
            width = (model.layers - self._lowest) * model.hidden
            if classifier.weights_KD.shape[1] != width:
                raise UserError(
                    f"the classifier reads {classifier.weights_KD.shape[1]} features, but the "
                    f"model has {width} of its kind; make it again with `mlstm-jax transfer`."
                )
            layer, self._unit = divmod(int(classifier.ranking[0]), model.hidden)
            self._layer = self._lowest + layer
        self._lock = threading.Lock()
        self.read({"text": ""})  # compiles

    def model(self, _: dict[str, Any]) -> dict[str, Any]:
        """Say what is loaded."""
        model = self._run.config.model
        return {
            "run": self._run.folder.name,
            "step": self._run.step,
            "layers": model.layers,
            "hidden": model.hidden,
            "state": self._state,
            "layer": self._layer,
            "unit": self._unit,
            "example": _EXAMPLES.get(self._run.cleaning, _EXAMPLE),
            "classes": self._classifier.classes if self._classifier else [],
            "most_bytes": MOST_BYTES,
        }

    def read(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Read {text, state, layer, unit}: values by character, classes, active units, next bytes.

        What is not said is the classifier's: its state, and its first unit's layer.
        """
        text = _field(asked, "text", str, "")
        if len(text.encode("utf-8", "replace")) > MOST_BYTES:
            raise BadRequest(f"the text is longer than {MOST_BYTES:,} bytes; shorten it.", 413)
        state: State = _field(asked, "state", str, self._state)
        if state not in get_args(State):
            known = ", ".join(get_args(State))
            raise BadRequest(f"state is {reprlib.repr(state)}, but it must be one of {known}.")
        layer, layers = _field(asked, "layer", int, self._layer), self._run.config.model.layers
        if not 0 <= layer < layers:
            raise BadRequest(
                f"layer is {reprlib.repr(layer)}, but the model has 0 to {layers - 1}."
            )
        with self._lock:
            trace = self._reader(prompt_bytes(text, self._run.cleaning), state, layer)
            classes = self._classes(text)
        last_H = trace.values_TH[-1]
        active = np.argsort(-np.abs(last_H))[:_SHOWN]
        unit = self._checked(_field(asked, "unit", int, int(active[0])))
        likeliest = np.argsort(-trace.next_V)[:_SHOWN]
        return {
            "state": state,
            "layer": layer,
            "unit": unit,
            "characters": [
                {"text": one.text, "value": round(float(trace.values_TH[one.end, unit]), 4)}
                for one in characters(trace.text)
            ],
            "classes": classes,
            "active": [{"unit": int(u), "value": round(float(last_H[u]), 4)} for u in active],
            "next": [
                {"byte": int(b), "text": _shown(int(b)), "probability": float(trace.next_V[b])}
                for b in likeliest
            ],
        }

    def generate(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Go on with {text, length, temperature, seed, unit, value}; value null holds nothing."""
        text = _field(asked, "text", str, "")
        length = _field(asked, "length", int, 200)
        value = _field(asked, "value", float, None)
        if not 1 <= length <= _MOST_GENERATED:
            raise BadRequest(
                f"length is {reprlib.repr(length)}, but it must be 1 to {_MOST_GENERATED}."
            )
        if len(text.encode("utf-8", "replace")) > MOST_BYTES:
            raise BadRequest(f"the text is longer than {MOST_BYTES:,} bytes; shorten it.", 413)
        held = {}
        if value is not None:
            held = {self._checked(_field(asked, "unit", int, self._unit or 0)): value}
        with self._lock:
            pieces = generate(
                self._run,
                text,
                length=length,
                seed=_field(asked, "seed", int, 0),
                temperature=_field(asked, "temperature", float, 0.7),
                held=held,
            )
            return {"text": "".join(as_text(piece for (piece,) in pieces))}

    def _classes(self, text: str) -> list[dict[str, Any]]:
        if not self._classifier:
            return []
        cleaned = clean(text, self._run.cleaning)
        if not cleaned:
            return []
        end_LH = self._reader(cleaned).end_LH[self._state]
        (shares,) = self._classifier.probabilities(end_LH[self._lowest :].reshape(1, -1))
        return [
            {"name": name, "probability": float(share)}
            for name, share in zip(self._classifier.classes, shares, strict=True)
        ]

    def _checked(self, unit: int) -> int:
        hidden = self._run.config.model.hidden
        if not 0 <= unit < hidden:
            raise BadRequest(f"unit is {reprlib.repr(unit)}, but the model has 0 to {hidden - 1}.")
        return unit


def _field(asked: dict[str, Any], name: str, kind: type[Any], default: Any) -> Any:
    value: Any = asked.get(name)
    if value is None:
        return default
    # A bool is an int to Python.
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise BadRequest(f"{name} is {reprlib.repr(value)}, but it must be a {kind.__name__}.")
    if kind is float and not abs(value) <= sys.float_info.max:
        raise BadRequest(f"{name} is {reprlib.repr(value)}, but it must be finite.")
    return kind(value)


def _shown(byte: int) -> str:
    names = {10: "↵", 32: "␣", 2: "STX", 3: "ETX"}
    return names.get(byte) or (chr(byte) if 32 < byte < 127 else f"0x{byte:02x}")


def make_app(viewer: Viewer, hosts: set[str] | None) -> Any:
    """Return the ASGI application.

    Args:
        viewer: what answers.
        hosts: the host names that it answers to, as they are in a URL; None: any.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import FileResponse, Response
    from starlette.routing import Route

    def reply(content: dict[str, Any], status: int = 200) -> Response:
        # All in ASCII: a name of a stranger may hold what UTF-8 has not.
        text = json.dumps(content, allow_nan=False)
        return Response(text, status, headers=_HEADERS, media_type="application/json")

    def refuse(message: str, status: int) -> Response:
        return reply({"error": message}, status)

    class KnownHosts:
        """Refuse what was sent to another name: a site elsewhere may have its own lead here."""

        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            app = self._app
            if scope["type"] == "http" and hosts is not None:
                named = [value for name, value in scope["headers"] if name == b"host"]
                if [_without_port(value.decode("latin-1")) in hosts for value in named] != [True]:
                    app = refuse("this page has another address.", 400)
            await app(scope, receive, send)

    async def page(request: Request) -> FileResponse:
        return FileResponse(_PAGE / _FILES[request.url.path], headers=_HEADERS)

    def answer(method: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        async def handle(request: Request) -> Response:
            try:
                # A page elsewhere cannot send this type without asking first, and is refused then.
                if request.headers.get("content-type") != "application/json":
                    raise BadRequest("the content type must be application/json.", 415)
                body = b""
                async for piece in request.stream():
                    body += piece
                    if len(body) > _MOST_BODY:
                        raise BadRequest(f"the request is larger than {_MOST_BODY:,} bytes.", 413)
                try:
                    asked = json.loads(body)
                except (ValueError, RecursionError) as error:
                    raise BadRequest(f"the request is not JSON ({error}).") from error
                if not isinstance(asked, dict):
                    raise BadRequest("the request must be a JSON object.")
                found = await run_in_threadpool(method, asked)
                try:
                    return reply(found)
                except ValueError as error:  # JSON has no inf and no NaN
                    message = "the model makes inf or NaN of this; its weights are too large."
                    raise BadRequest(message, 422) from error
            except BadRequest as error:
                return refuse(str(error), error.status)
            except UserError as error:
                return refuse(str(error), 400)
            except ClientDisconnect:
                return refuse("the request was cut short.", 400)  # which nobody reads

        return handle

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return refuse(f"there is no {request.url.path} here.", 404)
        return refuse(f"{request.method} {request.url.path}: {error.detail}.", error.status_code)

    return Starlette(
        routes=[
            *(Route(path, page) for path in _FILES),
            *(
                Route(f"/{method.__name__}", answer(method), methods=["POST"])
                for method in (viewer.model, viewer.read, viewer.generate)
            ),
        ],
        middleware=[Middleware(KnownHosts)],
        exception_handlers={HTTPException: refused},
    )


def _without_port(host: str) -> str:
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?", host)
    return found[1].lower() if found else ""


class Address(NamedTuple):
    """Where the page is."""

    socket: socket.socket
    url: str
    hosts: set[str] | None  # that a request may name; None: any


def bind(host: str, port: int) -> Address:
    """Take a port, any free one for 0; UserError where it is taken or the host is not this one.

    An IPv6 address may stand in brackets, as it does in a URL.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"--port is {reprlib.repr(port)}, but it must be 0 to 65535.")
    name = host.removeprefix("[").removesuffix("]")
    if not name:
        raise UserError("--host is empty; name an address of this machine, such as 127.0.0.1.")
    try:
        address = ip_address(name)
    except ValueError:
        address = None
    is_v6 = address is not None and address.version == 6
    try:
        name.encode("idna")  # what the socket does, but leaves itself open where it fails
        family = socket.AF_INET6 if is_v6 else socket.AF_INET
        listening = socket.create_server((name, port), family=family)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen at {host}:{port} ({why}); choose another with --host or --port."
        ) from error
    # Browsers write an address in its short form.
    in_url = f"[{address}]" if is_v6 else name.lower()
    hosts = {in_url, "localhost", "127.0.0.1", "[::1]"}
    everywhere = address is not None and address.is_unspecified
    url = f"http://{in_url}:{listening.getsockname()[1]}/"
    return Address(listening, url, None if everywhere else hosts)


def serve(viewer: Viewer, address: Address) -> None:
    """Answer until the process is stopped."""
    import uvicorn

    app = make_app(viewer, address.hosts)
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[address.socket])
