"""`best_order`: an order of a partitioned program's operations that keeps few bytes alive.

XLA's text of a partitioned module is sorted by dependence only. On a GPU, XLA tries several orders and takes
the one that needs least, among them the one below: of all operations that could run next, the one that frees
most is run.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from pinchpoint.backends.jax.liveness import fuse, walk
from pinchpoint.backends.jax.program import Body, Op, Program


def best_order(program: Program) -> Program:
    """The program with its operations, and those of its loops, in the better of two orders."""
    ops = tuple(
        replace(op, bodies=tuple(Body(best_order(b.program), b.shared_bytes) for b in op.bodies))
        if op.bodies
        else op
        for op in program.ops
    )
    program = replace(program, ops=ops)
    return min(program, replace(program, ops=_by_freed_bytes(program)), key=lambda p: walk(p).peak_bytes)


def _by_freed_bytes(program: Program) -> tuple[Op, ...]:
    """Schedule what is in memory; a fused operation comes right before the first one that it joins."""
    reads, fused_away = fuse(program)
    ops, sizes = program.ops, program.sizes
    maker = {value: n for n, op in enumerate(ops) for value in op.outs}
    nodes = [n for n, op in enumerate(ops) if any(v not in fused_away for v in op.outs) or not op.outs]
    keeps = {*program.outputs, *(v for v in program.inputs if v not in program.donated)}
    users: dict[int, list[int]] = {}
    waits: dict[int, int] = {}
    ready_users: dict[int, list[int]] = {}
    for n in nodes:
        values = set(reads[n])
        for value in values:
            users.setdefault(value, []).append(n)
        needed = {maker[value] for value in values if value in maker} - {n}
        waits[n] = len(needed)
        for source in needed:
            ready_users.setdefault(source, []).append(n)
    left = {value: len(readers) for value, readers in users.items()}
    done: set[int] = set()

    def gain(n: int) -> int:
        freed = sum(sizes[v] for v in set(reads[n]) if left[v] == 1 and v not in keeps)
        return freed - sum(sizes[v] for v in ops[n].outs if v not in fused_away)

    heap = [(-gain(n), n) for n in nodes if not waits[n]]
    heapq.heapify(heap)
    order: list[int] = []
    emitted: set[int] = set()

    def emit(n: int) -> None:
        stack = [n]
        while stack:
            current = stack[-1]
            missing = [
                maker[v]
                for v in ops[current].ins
                if v in maker and maker[v] not in emitted and v in fused_away
            ]
            if current in emitted:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                emitted.add(current)
                order.append(current)
                stack.pop()

    while heap:
        key, n = heapq.heappop(heap)
        if n in done:
            continue
        if -gain(n) < key:  # it frees more by now
            heapq.heappush(heap, (-gain(n), n))
            continue
        done.add(n)
        emit(n)
        for value in set(reads[n]):
            left[value] -= 1
            if left[value] == 1:
                for other in users[value]:
                    if other not in done and not waits[other]:
                        heapq.heappush(heap, (-gain(other), other))
        for other in ready_users.get(n, ()):
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(heap, (-gain(other), other))
    for n in range(len(ops)):  # what nothing in memory needs
        if n not in emitted:
            emit(n)
    return tuple(ops[n] for n in order)
