"""The server of the page: each request is one text, as JSON of limited size.

By default it answers only requests from this machine. It serves the files of the page and no
other file of the disk. The work on a text ends when its client or the server does.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlstm_jax import fields
from mlstm_jax.errors import UserError, require
from mlstm_jax.loaded import Loaded
from mlstm_jax.terminal import show
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.view.viewer import MOST_BYTES, RequestError, Viewer

_MOST_BODY = 4 * MOST_BYTES  # JSON may encode one byte as several
# More are refused with 503. Some systems limit a process to 256 open files.
_MOST_CONNECTIONS = 128
_SECONDS_TO_ASK = 10.0  # from the opening of a connection to the end of its request

_PAGE = Path(__file__).parent
_FILES = {"/": "index.html", **{f"/{name}": name for name in ("view.js", "view.css")}}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def _reply(content: dict[str, Any], status: int = 200) -> Response:
    # ASCII only: a class or run name may hold a lone surrogate, which UTF-8 cannot encode.
    text = json.dumps(content, allow_nan=False)
    return Response(text, status, headers=_HEADERS, media_type="application/json")


def _refuse(message: str, status: int) -> Response:
    return _reply({"error": message}, status)


async def _refused(request: Request, error: Exception) -> Response:
    """The answer to a request that Starlette itself refuses."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _refuse(f"{request.url.path} does not exist.", 404)
    return _refuse(f"{request.method} {request.url.path}: {error.detail}.", error.status_code)


async def _page(request: Request) -> FileResponse:
    return FileResponse(_PAGE / _FILES[request.scope["path"]], headers=_HEADERS)


async def _asked(request: Request) -> dict[str, Any]:
    """The JSON object of a request's body."""
    # A page of another site must ask before it sends this type, and is refused.
    if request.headers.get("content-type") != "application/json":
        raise RequestError("the content type must be application/json.", 415)
    body = b""
    async with asyncio.timeout(_SECONDS_TO_ASK):
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BODY:
                raise RequestError(f"the request is larger than {_MOST_BODY:,} bytes.", 413)
    asked = fields.parse(body)
    require(isinstance(asked, dict), "the request", asked, "a JSON object")
    return asked


def _handler(
    method: Callable[..., dict[str, Any]], is_stopping: Callable[[], bool]
) -> Callable[[Request], Awaitable[Response]]:
    """What answers by a method of `Viewer`, which ends early if the client or the server does."""

    async def work(request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        gone = threading.Event()

        def check() -> None:
            if gone.is_set() or is_stopping():
                raise RequestError("the request was ended.", 503)

        async def wait() -> None:
            await request.receive()  # After the body only the end of the connection comes.
            gone.set()

        waiting = asyncio.create_task(wait())
        try:
            return await run_in_threadpool(method, asked, check)
        finally:
            gone.set()
            waiting.cancel()

    async def handle(request: Request) -> Response:
        try:
            result = await work(request, await _asked(request))
            try:
                return _reply(result)
            except ValueError as error:  # JSON has no inf or NaN
                message = "the model computes inf or NaN here; its weights are too large."
                raise RequestError(message, 422) from error
        except UserError as error:
            return _refuse(str(error), getattr(error, "status", 400))
        except TimeoutError:
            return _refuse(f"the request took longer than {_SECONDS_TO_ASK:g} s.", 408)
        except ClientDisconnect:
            return _refuse("the request is incomplete.", 400)  # the client has gone

    return handle


def make_app(viewer: Viewer, hosts: set[str] | None, is_stopping: Callable[[], bool]) -> Starlette:
    """The ASGI application; requests may use these host names, as in a URL (None: any)."""
    routes = [Route(path, _page) for path in _FILES]
    for method in (viewer.model, viewer.read, viewer.generate):
        handle = _handler(method, is_stopping)
        routes.append(Route(f"/{method.__name__}", handle, methods=["POST"]))
    # A site may point its own name here (DNS rebinding).
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=hosts or {"*"}, www_redirect=False)
    return Starlette(
        routes=routes, middleware=[guard], exception_handlers={HTTPException: _refused}
    )


class Address(NamedTuple):
    socket: socket.socket
    url: str
    hosts: set[str] | None  # host names that a request may use; None: any


def bind(host: str, port: int) -> Address:
    """Bind a port, or any free one for 0; UserError if it is in use or the host is another machine.

    An IPv6 address may be in brackets, as in a URL.
    """
    require(0 <= port <= 65535, "port", port, "0 to 65535")
    name = host.removeprefix("[").removesuffix("]")
    if not name:
        raise UserError("host is empty; it must be an address of this machine, such as 127.0.0.1.")
    try:
        address = ip_address(name)
    except ValueError:
        address = None
    is_v6 = address is not None and address.version == 6
    try:
        name.encode("idna")  # create_server also does this, but leaks its socket on failure
        family = socket.AF_INET6 if is_v6 else socket.AF_INET
        listening = socket.create_server((name, port), family=family)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen on {host}:{port} ({why}); choose another with `host` or `port`."
        ) from error
    # Browsers use the short form of an address.
    in_url = f"[{address}]" if is_v6 else name.lower()
    hosts = {in_url, "localhost", "127.0.0.1", "[::1]"}
    everywhere = address is not None and address.is_unspecified
    url = f"http://{in_url}:{listening.getsockname()[1]}/"
    return Address(listening, url, None if everywhere else hosts)


class _Protocol(H11Protocol):
    """uvicorn's protocol, with a time limit for the lines before a request's body."""

    limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.limit = self.loop.call_later(_SECONDS_TO_ASK, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_asked = self.cycle is not None and not self.cycle.response_complete
        if is_asked and self.limit:
            self.limit.cancel()
            self.limit = None
        elif not is_asked and self.limit is None:
            self.limit = self.loop.call_later(_SECONDS_TO_ASK, self.transport.close)


def serve(viewer: Viewer, address: Address) -> None:
    """Serve the page until the process is stopped."""
    config = uvicorn.Config(
        make_app(viewer, address.hosts, lambda: server.should_exit),
        http=_Protocol,
        limit_concurrency=_MOST_CONNECTIONS,
        backlog=_MOST_CONNECTIONS,  # asyncio accepts as many before any is handled
        log_config=None,  # uvicorn's would close the handlers of the program that calls this
        log_level="warning",
        access_log=False,
    )
    server = uvicorn.Server(config)
    # A notebook runs its cells in an event loop, and the server needs one of its own.
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(server.run, sockets=[address.socket])
        try:
            running.result()
        finally:
            server.should_exit = True


def show_page(
    loaded: Loaded,
    classifier: Classifier | None,
    example: str,
    *,
    label: str | None,
    host: str,
    port: int,
) -> None:
    """Serve the page of a model, which begins with the example."""
    address = bind(host, port)
    with address.socket:  # An error must not keep the port.
        viewer = Viewer(loaded, classifier, label, example)
        show(f"{address.url} shows {loaded.name}; Ctrl-C stops it")
        serve(viewer, address)
