"""`skip_unused_work`: leave out work of inductor whose results nobody needs here.

What is fused, and what is allocated, is decided by torch as always.
"""

from __future__ import annotations

from typing import Any

import torch

from pinchpoint.backends.torch.compiled.compat import Patch


def skip_unused_work(patch: Patch) -> None:
    from torch._inductor import scheduler
    from torch._inductor.codegen import common

    patch(torch.fx.GraphModule, "print_readable", lambda *_, **__: "")  # of graphs that nobody logs
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
