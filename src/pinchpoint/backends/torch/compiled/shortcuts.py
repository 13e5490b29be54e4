"""`skip_kernel_text`: leave out work of inductor that only the text of its kernels needs.

The kernels never run here. Which buffers a kernel reads, writes, and reuses does not depend on the indices
within them, on the ranges of their values, or on how a kernel is tiled: that work is most of the time of
generating them. What is fused, and what is allocated, is decided by torch as always.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from pinchpoint.backends.torch.compiled.compat import Patch


def skip_kernel_text(patch: Patch) -> None:
    import sympy
    from torch._inductor import loop_body, scheduler
    from torch._inductor.codegen import common, simd

    patch(torch.fx.GraphModule, "print_readable", lambda *_, **__: "")  # of graphs that nobody logs
    depth = 0  # kernels that are being generated
    generate = simd.SIMDScheduling.codegen_node_schedule_with_kernel
    index_of: Any = loop_body.LoopBody.indexing_from_args
    bounds_of: Any = loop_body.LoopBody.bounds

    def generate_kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            return generate(self, *args, **kwargs)
        finally:
            depth -= 1

    def indices(self: Any, indices: Any, *args: Any) -> Any:
        """The symbols of each index, added up: they tell what varies in which loop."""
        if not depth:
            return index_of(self, indices, *args)
        values = [value for dimension in indices for value in dimension]
        symbols: dict[Any, Any] = {
            variable: sympy.Add(*list[Any](sympy.sympify(value).free_symbols))
            for variable, value in zip(self.var_ranges, values, strict=True)
        }
        return {
            name: sympy.Add(*(symbols.get(symbol, symbol) for symbol in index.free_symbols))
            for name, index in self.indexing_exprs.items()
        }

    def bounds(self: Any) -> Any:
        return SimpleNamespace(get_bounds=dict) if depth else bounds_of(self)

    patch(simd.SIMDScheduling, "codegen_node_schedule_with_kernel", generate_kernel)
    patch(loop_body.LoopBody, "indexing_from_args", indices)
    patch(loop_body.LoopBody, "bounds", bounds)
    patch(simd, "indexing_dtype_strength_reduction", lambda *_, **__: None)
    simplify = scheduler.SimplifyIndexing  # pyright: ignore[reportPrivateImportUsage]
    patch(scheduler, "SimplifyIndexing", lambda inner, ranges: inner if depth else simplify(inner, ranges))
    _keep_handler(patch, common)
    _skip_symbols(patch, scheduler.Scheduler)


def _skip_symbols(patch: Patch, scheduler: Any) -> None:
    """Look for the sizes that a part of a graph depends on only if that part is captured."""
    from torch._inductor import config
    from torch.utils._ordered_set import OrderedSet

    name = "get_graph_partition_symbol_inputs"
    if not hasattr(scheduler, name):  # before torch 2.8
        return
    symbols = getattr(scheduler, name)

    def symbols_of(*args: Any) -> Any:
        is_captured = config.triton.cudagraphs  # pyright: ignore[reportAttributeAccessIssue]
        return symbols(*args) if is_captured else OrderedSet()

    patch(scheduler, name, symbols_of)


def _keep_handler(patch: Patch, common: Any) -> None:
    """Build the table of result types once instead of for every operation."""
    if not hasattr(common, "DtypePropagationOpsHandler"):  # before torch 2.7
        return
    build, handler = common.DtypePropagationOpsHandler, []

    def get() -> Any:
        if not handler:
            handler.append(build())
        return handler[0]

    patch(common, "DtypePropagationOpsHandler", get)
