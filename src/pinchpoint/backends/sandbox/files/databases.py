"""`sqlite3.connect` and `dbm.open` for the overlay: both open their files in C, by path.

A writable database is copied to scratch together with its companion files; one that is opened read-only is
read in place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from pinchpoint.backends.sandbox.files.merged_view import View

_SQLITE_BESIDE = ("-wal", "-shm", "-journal")
_URI_ARGUMENT = 7  # position of `uri` in sqlite3.connect(database, timeout, ..., uri)


def connector(view: View, connect: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `sqlite3.connect` that opens the script's copy of a database."""

    def connect_in_scratch(database: Any, *args: Any, **kwargs: Any) -> Any:
        text = os.fsdecode(database)
        is_uri = kwargs.get("uri", args[_URI_ARGUMENT - 1] if len(args) >= _URI_ARGUMENT else False)
        if is_uri and text.startswith("file:"):
            return connect(_uri_in_scratch(view, text), *args, **kwargs)
        if text in ("", ":memory:"):
            return connect(database, *args, **kwargs)
        return connect(_in_scratch(view, text, _SQLITE_BESIDE), *args, **kwargs)

    return connect_in_scratch


def dbm_opener(view: View, open_database: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `dbm.open` that opens the script's copy of a database."""

    def open_in_scratch(file: Any, flag: str = "r", mode: int = 0o666) -> Any:
        name = os.path.basename(os.fsdecode(file))
        folder = os.path.dirname(view.script_path(file))
        beside = [other[len(name) :] for other in os.listdir(folder) if other.startswith(name + ".")]
        return open_database(_in_scratch(view, os.fsdecode(file), beside), flag, mode)

    return open_in_scratch


def _in_scratch(view: View, path: str, beside: Any) -> str:
    """Copy a writable database and its files to scratch, and return its path there."""
    with view.lock:
        place = view.resolve(view.script_path(path), follow=True)
        for ending in ("", *beside):
            view.copy_up(place + ending)
        try:
            folder = view.mirror(os.path.dirname(place))
        except (FileNotFoundError, NotADirectoryError):
            return view.top + place  # the folder does not exist: the library raises its own error
        return f"{folder}/{os.path.basename(place)}"


def _uri_in_scratch(view: View, uri: str) -> str:
    """`file:path?query` with the path redirected; in-memory databases are unchanged."""
    path, mark, query = uri[5:].partition("?")
    options = parse_qs(query)
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]  # file://host/path; the host is empty or localhost
    path = unquote(path)
    if path in ("", ":memory:") or options.get("mode") == ["memory"]:
        return uri
    if options.get("mode") == ["ro"] or options.get("immutable") == ["1"]:
        return f"file:{quote(view.path_to_read(path))}{mark}{query}"
    return f"file:{quote(_in_scratch(view, path, _SQLITE_BESIDE))}{mark}{query}"
