"""Which files count as the user's own, and how a line is found from deep inside a library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pinchpoint
from pinchpoint.backends.recording import source_lines
from pinchpoint.backends.recording.source_lines import (
    Place,
    SourceLines,
    is_user_file,
    is_user_module,
    library_calls,
    line_of,
)

PACKAGE = str(Path(pinchpoint.__file__).parent)


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        ("/home/me/train.py", True),
        (f"{PACKAGE}/systems/cloud/train.py", True),
        (f"{PACKAGE}/profiling/profile.py", False),
        ("/home/me/.venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", False),
        (json.__file__, False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        ("/tmp/torchinductor_me/ab/cab.py", False),
        ("/tmp/me_pyg/torch_geometric.nn.conv.gcn_conv_GCNConv_propagate_x.py", False),
    ],
)
def test_a_file_is_the_users_or_not(file: str, is_own: bool) -> None:
    assert is_user_file(file) is is_own


def test_a_folder_of_installed_packages_holds_no_module_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "target" / "some-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    for folder, is_own in (("target", False), ("src", True)):
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        assert is_user_module(str(tmp_path / folder / "some" / "part.py")) is is_own


def test_shipped_systems_are_user_code_where_pinchpoint_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = "/home/me/.venv/lib/python3.12/site-packages/pinchpoint"
    monkeypatch.setattr(source_lines, "_PACKAGE", installed)
    monkeypatch.setattr(source_lines, "_TARGETS", (f"{installed}/systems/",))
    assert is_user_file(f"{installed}/systems/cloud/train.py")
    assert not is_user_file(f"{installed}/kit/edges/edges.py")


def test_pinchpoint_is_no_user_code_if_it_is_imported_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "src").symlink_to(Path(PACKAGE).parent)
    code = "from pinchpoint.backends.recording import recorder, source_lines\n"
    code += "print(recorder.__file__, source_lines.is_user_file(recorder.__file__))"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    file, is_own = answer.stdout.split()
    assert file.startswith(str(tmp_path))
    assert is_own == "False"


def test_the_line_of_the_user_is_found_through_frames_of_a_library() -> None:
    lines, places = SourceLines(), list[Place | None]()
    names: dict[str, Callable[[Callable[[], None]], None]] = {}
    exec(compile("def through(f):\n    f()\n", "/x/site-packages/y.py", "exec"), names)
    exec(compile("def act():\n    note()\n", "/x/site-packages/z.py", "exec"), names)
    names["note"] = lambda: places.append(lines.place(1))  # pyright: ignore[reportArgumentType]
    names["through"](names["act"])  # pyright: ignore[reportArgumentType] # this line
    file, _, code = line_of(places[0])
    assert file == __file__
    assert code.endswith("# this line")
    assert line_of(None) == ("", 0, "")


def test_the_functions_of_a_library_between_the_line_and_a_wait_are_named() -> None:
    names: dict[str, Any] = {"torch_call": library_calls}
    texts = {
        "torch/nn/module.py": "def call(f):\n    return f()\n",
        "graphs/utils.py": "def add_loops(f):\n    return f()\n",
        "graphs/conv.py": "def norm(f):\n    return add_loops(f)\ndef forward(f):\n    return norm(f)\n",
    }
    for file, text in texts.items():
        exec(compile(text, f"/x/site-packages/{file}", "exec"), names)
    exec(
        compile("def read():\n    return torch_call(0)\n", "/x/site-packages/torch/tensor.py", "exec"), names
    )
    assert names["call"](names["read"]) == ""
    assert names["forward"](names["read"]) == "in norm > add_loops of graphs"


def test_two_calls_at_a_line_have_the_same_place() -> None:
    lines = SourceLines()

    def pair() -> tuple[Place | None, Place | None]:
        return (lines.place(-1), lines.place(-1))

    first, second = pair()
    assert first is not None
    assert first == second
