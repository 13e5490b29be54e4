"""`NotebookCells`: the code cells of a notebook as Python code, one after the other, as Jupyter runs them.

A line of code is reported as `train.ipynb[3]:5`, line 5 of the third code cell. Lines for the shell (`!`) and
magics (`%`) are skipped and listed, except those that only run or time Python (`%run`, `%time`), change the
folder or a variable (`%cd`, `%env`), or write a file (`%%writefile`). Cells in other languages are skipped.
"""

from __future__ import annotations

import ast
import io
import linecache
import re
import shlex
import tokenize
from collections.abc import Iterator
from typing import Any

from pinchpoint.core.targets import notebook_cells

# Magics whose line or cell is Python that runs as usual.
_RUN_LINE = {"time", "timeit", "prun", "memit", "mprun", "lprun"}
_RUN_CELL = {*_RUN_LINE, "capture", "memit"}
_MAGIC = re.compile(r"^(?P<indent>\s*)(?P<target>[\w, ]+=\s*)?(?P<kind>%|!!?)(?P<text>[^=\s].*)$")
_HELP = re.compile(r"^\s*(\?\??\s*[\w.]+|[\w.]+\s*\?\??)\s*$")
_SHOWN = 4  # skipped lines that the note lists


class NotebookCells:
    """Yields each cell's name and code. `skipped`: what was left out so far: `cell 2: %matplotlib inline`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.skipped: list[str] = []
        self._sources = notebook_cells(path)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, source in enumerate(self._sources, 1):
            name = f"{self.path}[{number}]"
            # Tracebacks, `inspect` and the table of lines read the source of a cell from here.
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            yield name, self.to_python(source, number)

    def note(self) -> str | None:
        """What was skipped, in one sentence."""
        if not self.skipped:
            return None
        more = f" and {len(self.skipped) - _SHOWN} more" if len(self.skipped) > _SHOWN else ""
        return f"skipped in the notebook: {'; '.join(self.skipped[:_SHOWN])}{more}"

    def to_python(self, source: str, number: int) -> str:
        """The source of a cell without magics; every line keeps its number."""
        first, _, rest = source.lstrip("\n").partition("\n")
        if first.startswith("%%"):
            name, _, argument = first[2:].strip().partition(" ")
            blank = "\n" * (source.count("\n") - rest.count("\n"))
            if name in ("writefile", "file"):
                return _write_file(argument, rest)
            if name not in _RUN_CELL:
                self._skip(number, first)
                return ""
            return blank + self.to_python(rest, number)
        try:
            ast.parse(source)
        except SyntaxError:
            return self._without_magics(source, number)
        return source

    def _without_magics(self, source: str, number: int) -> str:
        lines: list[str] = []
        continues = False
        for line in source.splitlines():
            if continues:  # of a shell command whose line before ended in a backslash
                continues = line.endswith("\\")
                lines.append("")
                continue
            match = _MAGIC.match(line)
            if (match is None and not _HELP.match(line)) or _is_inside_statement(lines):
                lines.append(line)
                continue
            continues = line.endswith("\\")
            lines.append("" if match is None else self._line(match, line, number))
        return "\n".join(lines) + "\n"

    def _line(self, match: re.Match[str], line: str, number: int) -> str:
        indent, target, text = match["indent"], match["target"] or "", match["text"].lstrip("%")
        name, _, argument = text.strip().partition(" ")
        if match["kind"] == "%":
            if name in _RUN_LINE:
                statement = re.sub(r"^(-\w\s*\d*\s+)*", "", argument.strip())
                return f"{indent}{target}{statement or 'pass'}"
            if not target and (code := _as_code(name, argument.strip())):
                return indent + code
        self._skip(number, line.strip())
        return f"{indent}{target}[]" if target else f"{indent}pass"

    def _skip(self, number: int, text: str) -> None:
        self.skipped.append(f"cell {number}: {text if len(text) <= 60 else text[:57] + '...'}")


class _Shell:
    """What `get_ipython()` returns: magics run nothing, and there is no front end."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def names() -> dict[str, Any]:
    """The names that Jupyter adds to those of Python."""
    shell = _Shell()
    return {"display": lambda *args, **kwargs: None, "get_ipython": lambda: shell}


def _as_code(name: str, argument: str) -> str | None:
    """Python code for a line magic that changes what the following code does."""
    if name == "cd":
        return f"__import__('os').chdir(__import__('os').path.expanduser({argument or '~'!r}))"
    if name in ("env", "set_env") and argument:
        key, _, value = (
            argument.replace(" ", "=", 1).partition("=") if "=" not in argument else (argument.partition("="))
        )
        return f"__import__('os').environ[{key.strip()!r}] = {value.strip()!r}"
    if name == "run" and argument:
        words = [word for word in shlex.split(argument) if word not in ("-i", "-n", "-t")]
        file = words[0] if words[0].endswith(".py") else f"{words[0]}.py"
        return (
            f"__import__('sys').argv[:] = {[file, *words[1:]]!r}; "
            f"globals().update(__import__('runpy').run_path({file!r}, run_name='__main__'))"
        )
    return None


def _write_file(argument: str, text: str) -> str:
    words = shlex.split(argument)
    mode = "a" if "-a" in words or "--append" in words else "w"
    path = next((word for word in words if not word.startswith("-")), "")
    return f"with open(__import__('os').path.expanduser({path!r}), {mode!r}) as _file: _file.write({text!r})"


def _is_inside_statement(lines: list[str]) -> bool:
    """Whether the lines end inside brackets or a string, where the next line is not a magic."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            pass
    except tokenize.TokenError:
        return True
    except (SyntaxError, IndentationError):
        return False
    return False
