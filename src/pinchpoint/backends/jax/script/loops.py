"""`ScriptLoops`: turns of a JAX script's loops that may differ from those that were run.

A script that repeats itself is ended before its end. First, every running loop over known values goes on with
the turns in which a condition on its variable has another answer, and with its last turn if the variable may
decide about a size. Comparisons of plain numbers are recorded: one that had a single answer so far, and whose
numbers still change towards the other one, is named if the script was ended before it changed.
"""

from __future__ import annotations

import ast
import builtins
import operator
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pinchpoint.backends.jax.script.number_calls import track_number_calls
from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.loops.marking.loop_source import uses
from pinchpoint.backends.torch.loops.marking.syntax import RATE
from pinchpoint.backends.torch.loops.remainder import is_harmless_body
from pinchpoint.core.files import shown_path

_FOR, _COMPARE = "_pinchpoint_jax_for", "_pinchpoint_jax_compare"
_EVALUATED = 1_000_000  # turns whose conditions are evaluated
_JUMPS = 12  # to turns of one loop
_VALUES = 10_000  # pairs of numbers that are remembered of one comparison
_RECENT = 0.9  # a comparison whose numbers are new in this last part of its uses still changes
_OPERATIONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_BY_NAME = {function.__name__: function for function in _OPERATIONS.values()}


def mark_script(tree: ast.Module) -> ast.Module:
    """Let the loops of a script ask which turn is next, and its comparisons be recorded."""
    marked: ast.Module = _Marker().visit(track_number_calls(tree))
    return ast.fix_missing_locations(marked)


class _Marker(ast.NodeTransformer):
    def __init__(self) -> None:
        self._depth = 0  # loops around a statement, in its function

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        depth, self._depth = self._depth, 0
        self.generic_visit(node)
        self._depth = depth
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_While(self, node: ast.While) -> ast.While:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        tests, _ = uses(node)
        name = node.target.id if isinstance(node.target, ast.Name) else "_"
        is_size = isinstance(node.target, ast.Name) and _may_be_size(node.body, node.target.id)
        arguments = ast.arguments([], [ast.arg(name)], None, [], [], None, [])
        functions: list[ast.expr] = [ast.Lambda(arguments, test) for test in tests]
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        values = [ast.Constant(node.lineno), ast.Tuple(functions, ast.Load()), ast.Constant(is_size)]
        call = ast.Call(ast.Name(_FOR, ast.Load()), [node.iter, *values], [])
        node.iter = ast.copy_location(call, node.iter)
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        body = [*node.body, *node.orelse]
        # The other answer runs what follows a `continue`, or a `return` that does not end a loop.
        leaves = ast.Continue if self._depth else (ast.Continue, ast.Return)
        if isinstance(node.body[-1], leaves) or not is_harmless_body(body) or _sets(body):
            node.test = _Comparisons().visit(node.test)
        self.generic_visit(node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        values = (node.body, node.orelse)
        if not all(isinstance(one, ast.Constant) and not isinstance(one.value, int) for one in values):
            node.test = _Comparisons().visit(node.test)
        self.generic_visit(node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        return node


class _Comparisons(ast.NodeTransformer):
    """Replaces comparisons of two values in a condition by calls that record them."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        operation = _OPERATIONS.get(type(node.ops[0]))
        if len(node.ops) > 1 or operation is None:
            return node
        details = map(ast.Constant, (operation.__name__, node.lineno, node.col_offset))
        arguments = [node.left, node.comparators[0], *details]
        return ast.copy_location(ast.Call(ast.Name(_COMPARE, ast.Load()), arguments, []), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node


def _sets(body: Sequence[ast.stmt]) -> bool:
    """Whether statements set a variable other than a learning rate."""
    targets = (
        node
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store)
    )
    return any(not RATE.search(node.id if isinstance(node, ast.Name) else node.attr) for node in targets)


def _may_be_size(body: Sequence[ast.stmt], name: str) -> bool:
    """Whether a loop's variable is part of a computation, or chooses an element."""

    def mentions(node: ast.AST) -> bool:
        return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))

    return any(
        (isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod) and mentions(node))
        or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and mentions(node.slice))
        for statement in body
        for node in ast.walk(statement)
    )


@dataclass
class _Comparison:
    """What a comparison was asked so far. uses, changed: how often, and when its numbers were last new."""

    answers: set[bool] = field(default_factory=set)
    pairs: set[tuple[Any, Any]] = field(default_factory=set)
    uses: int = 0
    changed: int = 0
    difference: float | None = None
    approaches: bool = False  # whether the numbers came nearer to the other answer
    loops: list[weakref.ref[_Turns]] = field(default_factory=list)  # that ran then

    def add(self, left: Any, right: Any, answer: bool) -> None:
        self.uses += 1
        self.answers.add(answer)
        if (left, right) not in self.pairs and len(self.pairs) < _VALUES:
            self.pairs.add((left, right))
            self.changed = self.uses
        difference = left - right
        if self.difference is not None and abs(difference) < abs(self.difference):
            self.approaches = True
        self.difference = difference

    @property
    def is_open(self) -> bool:
        is_running = not self.loops or any(ref() is not None for ref in self.loops)
        still_changes = len(self.pairs) >= _VALUES or self.changed > _RECENT * self.uses
        return len(self.answers) == 1 and self.uses > 1 and self.approaches and still_changes and is_running


class ScriptLoops:
    """The loops that run, and the comparisons that were made. on_jump: called when a turn is chosen."""

    def __init__(self, on_jump: Callable[[], None]) -> None:
        self.on_jump = on_jump
        self.is_skipping = False  # whether the next turn of a loop is one that may differ
        self.left_out: dict[str, None] = {}  # lines of loops of which turns were left out
        self.answers: dict[str, set[Any]] = {}  # line of a loop -> answers of its conditions so far
        self.jumps: dict[str, int] = {}  # line of a loop -> turns that were chosen
        self.completed: set[str] = set()  # lines of loops whose last turn was run
        self._running: list[weakref.ref[_Turns]] = []
        self._comparisons: dict[tuple[str, int, int], _Comparison] = {}

    def install(self, patches: Patches) -> None:
        patches.set(builtins, _FOR, self._for)
        patches.set(builtins, _COMPARE, self._compare)

    def skip(self) -> bool:
        """Whether a loop that runs has a turn that may differ, which is then run next."""
        self.is_skipping = any(turns.next_place() is not None for turns in self.running())
        return self.is_skipping

    def reasons(self) -> list[str]:
        """Why turns that were not run may need more memory, if the script is ended now."""
        many = [shown_path(site) for site, jumps in self.jumps.items() if jumps >= _JUMPS]
        if self.is_skipping:
            many += [shown_path(turns.site) for turns in self.running() if turns.next_place() is not None]
        return [
            *(f"the loop at {line} has turns that may differ and were not run" for line in many),
            *(
                f"the condition at {line} had one answer in all turns that were run, and may have another"
                for line in self.open_lines()
            ),
        ]

    def notes(self) -> tuple[str, ...]:
        lines = ", ".join(map(shown_path, self.left_out))
        return (f"turns that only repeat others were left out of the loops at {lines}",) if lines else ()

    def open_lines(self) -> list[str]:
        """Lines of the comparisons that may still have another answer."""
        open_keys = (key for key, comparison in self._comparisons.items() if comparison.is_open)
        return sorted({shown_path(f"{file}:{line}") for file, line, _ in open_keys})

    def running(self) -> list[_Turns]:
        return [turns for ref in self._running if (turns := ref()) is not None]

    def _for(self, things: Any, line: int, tests: tuple[Callable[[Any], Any], ...], is_size: bool) -> Any:
        inner = getattr(things, "iterable", things) if _is_bar(things) else things
        sequence = inner if isinstance(inner, (range, list, tuple)) else ()
        site = f"{sys._getframe(1).f_code.co_filename}:{line}"
        turns = _Turns(self, site, iter(things), sequence, tests, is_size and isinstance(inner, range))
        self._running = [ref for ref in self._running if ref() is not None] + [weakref.ref(turns)]
        return turns

    def _compare(self, left: Any, right: Any, operation: str, line: int, column: int) -> Any:
        answer = _BY_NAME[operation](left, right)
        if type(left) in (int, float) and type(right) in (int, float):
            key = sys._getframe(1).f_code.co_filename, line, column
            comparison = self._comparisons.setdefault(key, _Comparison())
            if len(comparison.answers) < 2:
                comparison.add(left, right, answer)
                comparison.loops = [ref for ref in self._running if ref() is not None]
        return answer


class _Turns:
    """One run of a loop. sequence: all values of its variable, or none if they are unknown."""

    def __init__(
        self,
        loops: ScriptLoops,
        site: str,
        iterator: Any,
        sequence: Sequence[Any],
        tests: tuple[Callable[[Any], Any], ...],
        is_size: bool,
    ) -> None:
        self._loops, self.site, self._iterator, self._sequence = loops, site, iterator, sequence
        self._tests, self._is_size = tests, is_size
        self._at = -1  # place of the turn that runs
        self._checked = 0, 0  # known answers, and the place up to which no other one was found

    def __iter__(self) -> _Turns:
        return self

    def __next__(self) -> Any:
        if not self._loops.is_skipping or not self._sequence:
            value = next(self._iterator)
            self._at += 1
        else:
            place = self.next_place()
            self._loops.left_out[self.site] = None
            if place is None:
                raise StopIteration  # a loop around this one has a turn that may differ
            self._loops.jumps[self.site] = self._loops.jumps.get(self.site, 0) + 1
            self._loops.is_skipping = False
            self._loops.on_jump()
            for _ in range(place - self._at if not isinstance(self._sequence, range) else 1):
                value = next(self._iterator)
            if isinstance(self._sequence, range):
                self._iterator = iter(self._sequence[place + 1 :])
            self._at, value = place, self._sequence[place]
        if self._sequence and self._tests:
            self._known().add(self._answer(value))
        if self._at == len(self._sequence) - 1:
            self._loops.completed.add(self.site)
        return value

    def next_place(self) -> int | None:
        """The next turn in which a condition has another answer, or the last one if that may differ."""
        if not self._sequence or self._loops.jumps.get(self.site, 0) >= _JUMPS:
            return None
        last = len(self._sequence) - 1
        known = self._known() | {None}
        if self._tests:
            if self._checked[0] != len(known):
                self._checked = len(known), 0
            first = max(self._at, self._checked[1]) + 1
            end = min(self._at + _EVALUATED, last)
            for at in range(first, end + 1):
                if self._answer(self._sequence[at]) not in known:
                    return at
            self._checked = len(known), max(end, first - 1)
        is_new = self._is_size and self.site not in self._loops.completed
        return last if is_new and self._at < last else None

    def _known(self) -> set[Any]:
        return self._loops.answers.setdefault(self.site, set())

    def _answer(self, value: Any) -> tuple[bool, ...] | None:
        try:
            return tuple(bool(test(value)) for test in self._tests)
        except Exception:  # a condition may need a name that does not exist yet
            return None


def _is_bar(things: Any) -> bool:
    return type(things).__module__.partition(".")[0] == "tqdm"
