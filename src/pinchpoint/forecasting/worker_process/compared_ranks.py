"""`compared_ranks`: the ranks that a script treats differently, by the comparisons in its source."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path

from pinchpoint.core.ranks import Rank

_MOST_RANKS = 4_096  # of a job, for which comparisons are answered
_ARITHMETIC = (
    ast.Constant,
    ast.BinOp,
    *(ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod),
    ast.Compare,
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *(ast.Tuple, ast.List, ast.Set, ast.Load),
)


def compared_ranks(path: str | Path, job: Rank) -> list[int]:
    """The first rank for each answer of each comparison of a rank, such as 0 and 3 for `rank == 3`.

    A name that ends in `rank` is the rank of the process, one that ends in `local_rank` that on its machine,
    and one that ends in `world_size` the size of the job. Comparisons with other names are left out.
    """
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []
    ranks: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and "rank" in ast.unparse(node).lower():
            with contextlib.suppress(ArithmeticError, TypeError):
                ranks |= _first_by_answer(node, job)
    return sorted(ranks)


def _first_by_answer(comparison: ast.Compare, job: Rank) -> set[int]:
    first: dict[bool, int] = {}
    for rank in range(min(job.world_size, _MOST_RANKS)):
        values = {
            "local_rank": rank % job.local_world_size,
            "rank": rank,
            "world_size": job.world_size,
        }
        expression = _WithValues(values).visit(ast.parse(ast.unparse(comparison), mode="eval").body)
        if not all(isinstance(node, _ARITHMETIC) for node in ast.walk(expression)):
            return set()
        code = compile(ast.fix_missing_locations(ast.Expression(expression)), "<comparison>", "eval")
        first.setdefault(bool(eval(code, {"__builtins__": {}})), rank)
    return set(first.values())


class _WithValues(ast.NodeTransformer):
    """Replaces names, attributes and calls without arguments by values, by how they end."""

    def __init__(self, values: dict[str, int]) -> None:
        self._values = values

    def _value(self, node: ast.AST, name: str) -> ast.AST:
        for end, value in self._values.items():
            if name.lower().endswith(end):
                return ast.Constant(value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._value(node, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._value(node, node.attr)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node.args or node.keywords:
            return node
        return self.visit(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else node
