"""Row offsets are summed up in float32.

float32 counts exactly only to 2^24: above 16.7 million edges the offsets are wrong, and rows get the values
of their neighbours. Sum integers.

Bad:

    import torch

    def offsets(counts):
        return torch.cumsum(counts.float(), dim=0).long()

Good:

    import torch

    def offsets(counts):
        return torch.cumsum(counts, dim=0)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, method, receiver


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if not _to_integer(source, call):
            continue
        summed = receiver(call)
        if isinstance(summed, ast.Call) and source.name(summed.func) == "torch.cumsum" and summed.args:
            value = summed.args[0]
        elif isinstance(summed, ast.Call) and method(summed) == "cumsum":
            value = receiver(summed)
        else:
            continue
        if _to_float(source, value):
            yield Match(call)


def _to_integer(source: Source, call: ast.Call) -> bool:
    if method(call) in ("long", "int"):
        return True
    dtype = argument(call, "dtype", 0) if method(call) in ("to", "type") else None
    return source.name(dtype) in ("torch.int64", "torch.long", "torch.int32", "torch.int")


def _to_float(source: Source, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    if method(value) in ("float", "half", "bfloat16"):
        return True
    dtype = argument(value, "dtype", 0) if method(value) in ("to", "type") else None
    return source.name(dtype) in ("torch.float32", "torch.float", "torch.float16", "torch.bfloat16")


RULE = Rule(
    number=514,
    name="float-offsets",
    message="The offsets are summed in float32, which is wrong above 2^24.",
    hint="Sum the integers themselves: torch.cumsum(counts, dim=0).",
    check=check,
)
