"""What a script would still have run where it was stopped."""

from __future__ import annotations

import sys
import textwrap
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinchpoint.backends.torch.loops.collecting import collected
from pinchpoint.backends.torch.loops.remainder import collects_rarely, what_is_left


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a script until it calls `stop`, in a loop that was run for some turns; returns what is left."""

    def run(text: str, turns: int = 10, other_turns: bool = False) -> Any:
        file = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(file)))
        loop = SimpleNamespace(turns=turns, has_other_turns=lambda: other_turns)
        left: list[Any] = []

        def stop() -> None:
            left.append(what_is_left(sys._getframe(1), SimpleNamespace(at=lambda site: loop)))

        def package() -> None:
            exec(compile("stop()", "/lib/site-packages/package.py", "exec"), {"stop": stop})

        names = {"stop": stop, "package": package, "model": lambda *x: None}
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
        line = left[0].line
        return (None if line is None else int(line.rpartition(":")[2])), left[0].package

    return run


SAMPLE = """
def sample():
    x = None
    for step in range(1):
        x = stop()
    return x
for image in range(1):
    images = sample()
print("done", len("abc"))
"""


def test_a_loop_before_prints_leaves_nothing(stopped: Any) -> None:
    assert stopped(SAMPLE) == (None, False)


def test_what_follows_is_named(stopped: Any) -> None:
    assert stopped(SAMPLE + "if images is None:\n    model(3)\n") == (11, False)
    assert stopped("stop()\nx = 1\ny = x * 2\n") == (3, False)
    assert stopped("print(model(stop()), model(1))\n") == (1, False)
    assert stopped("try:\n    stop()\nfinally:\n    model(1)\n") == (4, False)


def test_turns_that_may_differ_are_named(stopped: Any) -> None:
    assert stopped(SAMPLE, turns=2)[0] == 7
    assert stopped(SAMPLE, other_turns=True)[0] == 7
    text = "for i in range(1):\n    stop()\n    if model is None:\n        model(i)\n"
    assert stopped(text)[0] == 4
    assert stopped(text.replace("model is None", "i % 10 == 3"))[0] is None


def test_the_rest_of_a_package_is_unknown(stopped: Any) -> None:
    assert stopped("package()\nprint(1)\n") == (None, True)


def frame_of(variables: dict[str, Any]) -> types.FrameType:
    names = {**variables, "frame": sys._getframe}
    exec(compile("now = frame()", "script.py", "exec"), names)
    return names["now"]


def test_containers_that_grow_are_seen() -> None:
    class Meter:
        def __init__(self) -> None:
            self.values = {"all": [0.5]}

    meter = Meter()
    frame = frame_of({"meter": meter, "count": 3})
    before = collected(frame)
    assert before is not None and collected(frame) == before
    meter.values["all"].append(1.0)
    assert collected(frame) == before + 1


def test_a_container_that_grows_in_rare_turns_is_found(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("for i in x:\n    if i % 9 == 0:\n        y.append(i)\nfor i in x:\n    y.append(i)\n")
    assert collects_rarely(f"{file}:1") and not collects_rarely(f"{file}:4")


def test_arguments_of_a_call_come_before_it(stopped: Any) -> None:
    assert stopped("x = [package(), model(1)][:1]\n") == (1, False)
    assert stopped("x = [model(1), package()][:1]\n") == (None, True)
    assert stopped("x = model(stop())\n") == (1, False)
