"""`Network`: a script downloads, but sends nothing.

An HTTP request that only reads (GET, HEAD, OPTIONS) is made; any other raises ConnectionRefusedError, or the
HTTP library's own error for a connection that failed, because scripts handle that case. A connection that is
not made by an HTTP library (SMTP, websockets, a database) is refused too, unless its other end is a server of
the script itself. Libraries that use the network in C (curl, gRPC) are not covered.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import socket
import sys
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.sandbox.files.audit_hook import WriteGuard
from pinchpoint.backends.sandbox.trackers import LibraryPatch, Swap

_READS = ("GET", "HEAD", "OPTIONS")
# Requests that only read although they are not GET: lists of files on the Hugging Face hub and of Git LFS.
_QUERIES = ("/paths-info/", "/info/lfs/objects/batch")
_in_http: ContextVar[bool] = ContextVar("in_http", default=False)


class RefusedConnection(ConnectionRefusedError):
    """A connection or a request that was not made."""

    def __init__(self, what: str) -> None:
        super().__init__(
            errno.ECONNREFUSED, f"pinchpoint sends nothing while it predicts a script, and refused: {what}"
        )
        self.what = what


class Network:
    """Context manager. `refused_requests`: those that were not made, in order and each once.

    library_patches: for `Trackers`, by the name of the module that they change after its import
    """

    def __init__(self, write_guard: WriteGuard) -> None:
        self.refused_requests: list[str] = []
        self.library_patches: dict[str, LibraryPatch] = {
            "httpcore": self._patch_httpcore,
            "httpcore2": self._patch_httpcore,
            "aiohttp": self._patch_aiohttp,
        }
        self._write_guard = write_guard
        self._check_bind: Callable[..., None] | None = None
        self._patches = Patches()
        self._servers: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def __enter__(self) -> Network:
        connection = http.client.HTTPConnection
        self._patches.set(connection, "putrequest", self._put_request(connection.putrequest))
        self._patches.set(socket.socket, "connect_ex", _connect_ex(socket.socket.connect_ex))
        self._write_guard.check("socket.connect", self._check_connection)
        self._write_guard.check("socket.sendto", self._check_address)
        self._write_guard.check("socket.sendmsg", self._check_address)
        self._check_bind = self._write_guard.check("socket.bind", self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.undo()

    def _check_request(self, method: str, host: str, path: str) -> None:
        """Refuse a request that could change something at its destination."""
        if method.upper() not in _READS and not any(query in path for query in _QUERIES):
            if self._is_own(host):
                return
            self._refuse(f"{method.upper()} {host.rpartition('@')[2]}")

    def _check_connection(self, sock: Any, address: Any) -> None:
        # A datagram socket sends nothing when it connects; scripts find their own address in this way.
        if sock.type != socket.SOCK_DGRAM and not _in_http.get() and not _is_in_http_client():
            self._check_address(sock, address)

    def _check_address(self, sock: Any, address: Any) -> None:
        if address is None or sock.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
            return
        if not self._is_own(_text(address)):
            self._refuse(f"a connection to {_text(address)}")

    def _remember(self, sock: Any, address: Any) -> None:
        if self._check_bind is not None:
            self._check_bind(sock, address)
        self._servers.add(sock)

    def _is_own(self, address: str) -> bool:
        """Whether a server of the script itself listens there."""
        name, _, port = address.rpartition(":")
        for server in list(self._servers):
            with contextlib.suppress(OSError):  # it was closed, or never bound
                own = server.getsockname()
                if isinstance(own, tuple):
                    is_here = name in ("", "localhost", "0.0.0.0", "[::1]", "::1") or name.startswith("127.")
                    if is_here and str(own[1]) == port:
                        return True
                elif os.fsdecode(own) == address:
                    return True
        return False

    def _refuse(self, what: str) -> None:
        if what not in self.refused_requests:
            self.refused_requests.append(what)
        raise RefusedConnection(what)

    # --- libraries

    def _put_request(self, put: Callable[..., None]) -> Callable[..., None]:
        def putrequest(connection: Any, method: str, url: str, *args: Any, **kwargs: Any) -> None:
            self._check_request(method, f"{connection.host}:{connection.port}", url)
            put(connection, method, url, *args, **kwargs)

        return putrequest

    def _patch_httpcore(self, module: Any, swap: Swap) -> None:
        """httpcore makes the connections of httpx."""

        def check(request: Any) -> None:
            url = request.url
            port = url.port or {b"https": 443}.get(url.scheme, 80)
            try:
                self._check_request(
                    request.method.decode(), f"{url.host.decode()}:{port}", url.target.decode()
                )
            except RefusedConnection as error:
                raise module.ConnectError(str(error)) from error

        pool, async_pool = module.ConnectionPool, module.AsyncConnectionPool
        handle, handle_async = pool.handle_request, async_pool.handle_async_request

        def handle_request(self: Any, request: Any) -> Any:
            check(request)
            with _http():
                return handle(self, request)

        async def handle_async_request(self: Any, request: Any) -> Any:
            check(request)
            with _http():
                return await handle_async(self, request)

        swap(pool, "handle_request", handle_request)
        swap(async_pool, "handle_async_request", handle_async_request)

    def _patch_aiohttp(self, module: Any, swap: Swap) -> None:
        session = module.ClientSession
        send, connect = session._request, session._ws_connect

        def check(method: str, url: Any) -> None:
            parts = urlsplit(str(url))
            port = parts.port or {"https": 443, "wss": 443}.get(parts.scheme, 80)
            try:
                self._check_request(method, f"{parts.hostname}:{port}", parts.path)
            except RefusedConnection as error:
                raise module.ClientOSError(error.errno, error.strerror) from error

        async def _request(self: Any, method: str, url: Any, **kwargs: Any) -> Any:
            check(method, self._build_url(url))
            with _http():
                return await send(self, method, url, **kwargs)

        async def _ws_connect(self: Any, url: Any, **kwargs: Any) -> Any:
            check("WEBSOCKET", self._build_url(url))
            return await connect(self, url, **kwargs)

        swap(session, "_request", _request)
        swap(session, "_ws_connect", _ws_connect)


@contextlib.contextmanager
def _http() -> Iterator[None]:
    """Within this context, connections are those of an HTTP library, whose requests are checked."""
    token = _in_http.set(True)
    try:
        yield
    finally:
        _in_http.reset(token)


def _is_in_http_client() -> bool:
    """Whether `connect` of an HTTP connection is running, of http.client or a subclass as in urllib3."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "connect" and isinstance(
            frame.f_locals.get("self"), http.client.HTTPConnection
        ):
            return True
        frame = frame.f_back
    return False


def _connect_ex(connect: Callable[..., int]) -> Callable[..., int]:
    def connect_ex(sock: Any, address: Any) -> int:
        try:
            return connect(sock, address)
        except RefusedConnection:
            return errno.ECONNREFUSED

    return connect_ex


def _text(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else os.fsdecode(address)
