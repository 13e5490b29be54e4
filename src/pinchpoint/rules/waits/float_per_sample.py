"""A loop computes one sample at a time and turns each result into a Python number.

Every turn launches the whole computation for one sample and waits for it. Compute all samples in one call
(`jax.vmap`, `torch.vmap`, or a batched function) and read the results once.

Bad:

    import jax.numpy as jnp
    from physics import local_energy

    def mean_energy(log_psi, walkers):
        energies = []
        for i in range(walkers.shape[0]):
            energies.append(float(local_energy(log_psi, walkers[i])))
        return sum(energies) / len(energies)

Good:

    import jax
    from functools import partial
    from physics import local_energy

    def mean_energy(log_psi, walkers):
        return float(jax.vmap(partial(local_energy, log_psi))(walkers).mean())
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Loop, Source
from pinchpoint.rules.engine.values import kind


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if source.name(call.func) != "float" or len(call.args) != 1:
            continue
        loops = patterns.hot_loops(source, call)
        if not loops or patterns.is_rare(source, call) or not source.uses("torch", "jax"):
            continue
        computed = _computed(source, call.args[0])
        if (
            computed is not None
            and kind(source, computed) == ""
            and _takes_sample(source, computed, loops[0])
        ):
            yield Match(call, {"name": ast.unparse(computed.func)})


def _computed(source: Source, node: ast.expr) -> ast.Call | None:
    """The call whose result is converted, given directly or by the name it was assigned to."""
    if isinstance(node, ast.Name):
        store = source.binding(node)
        node = (source.assigned_value(store) if isinstance(store, ast.Name) else None) or node
    return node if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) else None


def _takes_sample(source: Source, call: ast.Call, loop: Loop) -> bool:
    """Whether an argument is `x[i]` with the counter of a loop over a range."""
    if not patterns.counts(source, loop):
        return False
    names = patterns.loop_names(source, loop)
    return any(
        isinstance(arg, ast.Subscript) and isinstance(arg.slice, ast.Name) and arg.slice.id in names
        for arg in call.args
    )


RULE = Rule(
    number=102,
    name="float-per-sample",
    message="`{name}` is computed for one sample in every turn, and `float` waits for each result.",
    hint="Compute all samples at once with vmap or a batched call, and read the results after it.",
    check=check,
)
