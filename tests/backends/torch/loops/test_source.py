"""Loops of a script are marked without changing what it computes or the numbers of its lines."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

from pinchpoint.backends.torch.loops.source import FOR, WHILE, WHILE_STARTS, mark_loops


def run(text: str, taken: dict[int, tuple[Any, ...]]) -> dict[str, Any]:
    def for_loop(things: Any, line: int, tests: tuple[Any, ...], is_used: bool) -> Any:
        taken[line] = tests, is_used
        return things

    names: dict[str, Any] = {FOR: for_loop, WHILE: lambda line: True, WHILE_STARTS: taken.setdefault}
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
