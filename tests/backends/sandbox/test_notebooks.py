"""Notebooks as scripts: what of a cell is Python, what is skipped, and that lines keep their numbers."""

from __future__ import annotations

import json
import linecache
import os
from pathlib import Path

import pytest

from pinchpoint.backends.sandbox.notebooks import NotebookCells, names
from pinchpoint.backends.sandbox.run_script import run_script
from pinchpoint.core.errors import BadInput


def notebook(path: Path, *cells: str, language: str = "python") -> str:
    sources = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    text = {"cell_type": "markdown", "source": ["# Title"]}
    content = {"cells": [text, *sources], "metadata": {"kernelspec": {"language": language}}, "nbformat": 4}
    path.write_text(json.dumps(content))
    return str(path)


def test_cells_run_in_order_in_one_namespace_and_keep_their_lines(tmp_path: Path) -> None:
    path = notebook(
        tmp_path / "n.ipynb", "a = 1", "%%time\n\nb = a + 1\ndef f():\n    raise KeyError(b)", "f()"
    )
    space = names()
    *first, last = NotebookCells(path)
    for name, code in first:
        exec(compile(code, name, "exec"), space)
    with pytest.raises(KeyError) as raised:
        exec(compile(last[1], last[0], "exec"), space)
    trace = raised.traceback
    assert [(str(frame.path), frame.lineno + 1) for frame in list(trace)[-2:]] == [
        (f"{path}[3]", 1),
        (f"{path}[2]", 5),
    ]
    assert linecache.getline(f"{path}[2]", 5).strip() == "raise KeyError(b)"


def test_magics_and_shell_lines_are_skipped_and_listed(tmp_path: Path) -> None:
    path = notebook(
        tmp_path / "n.ipynb",
        "%matplotlib inline\n!pip install \\\n    timm\nfiles = !ls\n"
        "for i in range(2):\n    !echo {i}\nx = 7",
        "text = '''\n% not a magic\n'''\ny = (x\n    % 4)\n?print\nprint?\n"
        "%timeit -n 10 z = y + 1\n%env KEY = value",
        "%%bash\nrm -rf everything",
        "%%writefile made.txt\nhello\n",
        "display(x); get_ipython().run_line_magic('matplotlib', 'inline')",
    )
    cells, space, before = NotebookCells(path), names(), os.getcwd()
    os.chdir(tmp_path)
    try:
        for _, code in cells:
            exec(code, space)
    finally:
        os.chdir(before)
        assert os.environ.pop("KEY") == "value"
    assert (space["x"], space["y"], space["z"], space["files"]) == (7, 3, 4, [])
    assert "% not a magic" in space["text"]
    assert (tmp_path / "made.txt").read_text() == "hello\n"
    assert cells.skipped == [
        "cell 1: %matplotlib inline",
        "cell 1: !pip install \\",
        "cell 1: files = !ls",
        "cell 1: !echo {i}",
        "cell 3: %%bash",
    ]
    assert str(cells.note()).endswith("!echo {i} and 1 more")


def test_run_puts_the_names_of_a_file_into_the_notebook(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import sys\nvalue = sys.argv[1:]")
    path = notebook(tmp_path / "n.ipynb", "%run other.py --lr 3", "assert value == ['--lr', '3']")
    end = run_script(path, scratch=tmp_path)
    assert end.kind == "finished", end.error


def test_a_file_that_is_no_python_notebook_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.ipynb").write_text("import torch")
    with pytest.raises(BadInput, match="is not a notebook: it is not JSON"):
        NotebookCells(str(tmp_path / "bad.ipynb"))
    with pytest.raises(BadInput, match=r"language of .* is R"):
        NotebookCells(notebook(tmp_path / "r.ipynb", "1", language="R"))
