"""Loops of a script are marked without changing what it computes or the numbers of its lines."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

from pinchpoint.backends.torch.loops.marking.loop_source import (
    COUNT,
    COUNT_STARTS,
    FOR,
    WHILE,
    WHILE_STARTS,
    mark_loops,
)
from pinchpoint.backends.torch.loops.marking.syntax import endings


def run(text: str, taken: dict[int, tuple[Any, ...]]) -> dict[str, Any]:
    def for_loop(things: Any, line: int, tests: tuple[Any, ...], is_used: bool) -> Any:
        taken[line] = tests, is_used
        return things

    names: dict[str, Any] = {FOR: for_loop, WHILE: lambda line: True, WHILE_STARTS: taken.setdefault}
    names |= {COUNT: lambda value, by, *details: value + by, COUNT_STARTS: lambda value, *details: value}
    exec(compile(mark_loops(ast.parse(textwrap.dedent(text))), "script.py", "exec"), names)
    return names


def test_conditions_on_the_variable_can_be_evaluated() -> None:
    loops: dict[int, tuple[Any, ...]] = {}
    names = run(
        """
        every, seen = 4, []
        def train():
            last = 9
            for step in range(10):
                if step % every == 0 and step != last:
                    seen.append(step)
                print(f"{step}")
        train()
        while len(seen) < 5:
            seen.append(-1)
        """,
        loops,
    )
    assert names["seen"] == [0, 4, 8, -1, -1]
    tests, is_used = loops[5]
    assert [step for step in range(12) if tests[0](step)] == [0, 4, 8]
    assert is_used  # by `seen.append(step)`
    assert 10 in loops


def test_a_condition_on_what_the_body_changes_is_not_evaluated() -> None:
    loops: dict[int, tuple[Any, ...]] = {}
    run(
        """
        best = 3
        for step in range(10):
            if step > best:
                best = 20
        for _ in range(3):
            pass
        """,
        loops,
    )
    assert loops[3] == ((), True)
    assert loops[6] == ((), False)


def test_counters_are_found_and_keep_their_values() -> None:
    names = run(
        """
        class State:
            total = 0
        state, seen, more = State(), [], [1]
        step, best = 0, 1.5
        def advance(by):
            global step
            step = step + by
            state.total += len(seen)
            return step
        counts = {"eval": 0}
        while step < 5:
            seen += [advance(2)]
            counts["eval"] += 1
        seen += more
        seen.append(step // 2)
        """,
        {},
    )
    assert names["seen"] == [2, 4, 6, 1, 3] and names["state"].total == 3 and names["counts"] == {"eval": 3}


def test_conditions_that_end_a_loop_are_found(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        textwrap.dedent(
            """
            while step < 5 and not done:
                if step > 3 or failed:
                    print("done")
                    break
                if step == 2:
                    save()
                    break
            def rows(step):
                if step < 3:
                    return 64
            """
        ),
        encoding="utf-8",
    )
    lines = [line for line, _ in endings(str(file))]
    assert lines == [2, 2, 3, 3]
    assert endings(str(file))[2, 6] is False and endings(str(file))[3, 7] is True
