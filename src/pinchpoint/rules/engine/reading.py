"""Reading files to scan: which ones, their text and tree, and the code cells of notebooks.

A notebook's code cells are joined to one text, so that a name of one cell is known in the next. Lines that
only IPython understands (magics and shell commands) become `pass`.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput

SUFFIXES = (".py", ".ipynb")
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv"}
# A cell of another language; %%time and the like are followed by Python.
_OTHER_LANGUAGE = re.compile(
    r"\s*%%(bash|sh|script|html|javascript|js|latex|markdown|perl|ruby|svg|writefile|cmd)\b"
)
_MAGIC = re.compile(r"(\s*)([%!?]|\w+\s*=\s*[%!]|.*\w\?\??\s*$)")
# Comments that mark cells and replaced lines in the joined text of a notebook.
_CELL = "# pinchpoint: cell "
_LINE = "  # pinchpoint: line "


class CannotRead(Exception):
    """A file that is not Python; the text says why. Never escapes the scan: the file is named."""


@dataclass(frozen=True)
class Cell:
    """A code cell: its number among all cells, counted from 1, and where it begins in the joined text."""

    number: int
    first_line: int


@dataclass(frozen=True)
class File:
    """The text of a file or of a notebook's code cells, parsed."""

    path: str
    text: str
    tree: ast.Module
    cells: tuple[Cell, ...] = ()

    def place(self, line: int) -> tuple[int | None, int]:
        """The cell of a line, if any, and the line in it."""
        cell = next((cell for cell in reversed(self.cells) if cell.first_line <= line), None)
        return (None, line) if cell is None else (cell.number, line - cell.first_line + 1)


def find_files(paths: Sequence[str], exclude: Iterable[str] = ()) -> list[str]:
    """The Python files and notebooks at and below the paths. Hidden and installed folders are left out."""
    patterns = tuple(exclude)
    files: dict[str, None] = {}
    for path in paths:
        if os.path.isdir(path):
            files.update(dict.fromkeys(_walk(path, patterns)))
        elif os.path.exists(path):
            files[os.path.normpath(path)] = None  # named explicitly: scanned whatever it is called
        else:
            raise BadInput(f"There is no file or folder {path}.", hint="Check the path.")
    return list(files)


def _walk(top: str, patterns: tuple[str, ...]) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED_FOLDERS
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            and not _excluded(os.path.join(folder, name), top, patterns)
        )
        for name in sorted(names):
            file = os.path.normpath(os.path.join(folder, name))
            if name.endswith(SUFFIXES) and not _excluded(file, top, patterns):
                yield file


def _excluded(path: str, top: str, patterns: tuple[str, ...]) -> bool:
    relative = os.path.relpath(path, top)
    return any(
        fnmatch(relative, pattern) or fnmatch(os.path.basename(path), pattern) or fnmatch(path, pattern)
        for pattern in patterns
    )


def read_file(path: str) -> File:
    """Read and parse one file; raises `CannotRead`."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CannotRead(f"it cannot be read ({error.strerror})") from error
    if path.endswith(".ipynb"):
        text, cells = join_cells(data)
        return File(path, text, parse(text), cells)
    text = decode(data)
    return File(path, text, parse(text))


def decode(data: bytes) -> str:
    """The text of a Python file in the encoding that it declares."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise CannotRead("its text does not have the encoding it declares") from error


def parse(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's string escapes
            return ast.parse(text)
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise CannotRead(f"it is not valid Python ({error.msg}{place})") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise CannotRead(f"Python cannot parse it ({type(error).__name__}: {error})") from error


def join_cells(data: bytes) -> tuple[str, tuple[Cell, ...]]:
    """The code of a notebook as one text with a comment before each cell, and where each cell begins."""
    lines: list[str] = []
    cells: list[Cell] = []
    for number, _, source in code_cells(load_notebook(data)):
        lines.append(f"{_CELL}{number}")
        cells.append(Cell(number, len(lines) + 1))
        lines += [_plain_line(line, place) for place, line in enumerate(source.split("\n"))]
    return "\n".join(lines) + "\n", tuple(cells)


def replace_cells(data: bytes, text: str) -> bytes:
    """The notebook with the code of a joined text in its cells; lines of IPython are as they were."""
    notebook = load_notebook(data)
    parts = re.split(rf"^{_CELL}\d+\n", text, flags=re.MULTILINE)[1:]
    for (_, cell, source), part in zip(code_cells(notebook), parts, strict=True):
        old = source.split("\n")
        lines = [
            old[int(magic.group(1))] if (magic := re.search(rf"{_LINE}(\d+)$", line)) else line
            for line in part[:-1].split("\n")  # without the line end that joins the cells
        ]
        code = "\n".join(lines)
        if code != source:
            cell["source"] = code.splitlines(keepends=True) if isinstance(cell["source"], list) else code
    indent = 1 if data.startswith(b'{\n "') else 2 if data.startswith(b'{\n  "') else None
    ending = "\n" if data.endswith(b"\n") else ""
    return (json.dumps(notebook, indent=indent, ensure_ascii=False) + ending).encode("utf-8")


def load_notebook(data: bytes) -> dict[str, Any]:
    try:
        notebook = json.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CannotRead("it is not a notebook (not JSON)") from error
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise CannotRead("it is not a notebook (it has no cells)")
    return notebook


def code_cells(notebook: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Number, cell, and text of every cell with Python code."""
    for number, cell in enumerate(notebook["cells"], 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", "")
            text = "".join(map(str, source)) if isinstance(source, list) else str(source)
            if text.strip() and not _OTHER_LANGUAGE.match(text):
                yield number, cell, text


def _plain_line(line: str, place: int) -> str:
    """The line, or `pass` and the number of the line in place of a magic or shell command."""
    magic = _MAGIC.match(line)
    return f"{magic.group(1)}pass{_LINE}{place}" if magic and not line.lstrip().startswith("#") else line
