"""The integral transform of neural operators: an MLP over edges, reduced to their destinations.

    out[q] = sum over edges (s -> q) of weight * kernel * f[s]

`memory` changes how the result is computed, not its value: `eager` saves the features of every edge for
backward; `checkpoint` and `flat` process the edges in chunks of whole rows and recompute them in
backward. With `flat`, nothing but the graph itself grows with the edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import MIB
from pinchpoint.kit.edges.edge_mlp import arithmetic, edge_bytes, is_one_kernel, layers_of
from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.kit.edges.edges import INT32_MOST, Edges
from pinchpoint.kit.edges.flat_transform import Job, check_channels, check_score, flat_rows
from pinchpoint.kit.edges.row_chunks import Rows, chunks_to_trace, row_chunks
from pinchpoint.kit.validation import require_module, require_tensor, whole_number
from pinchpoint.planning.chunk_size import largest_chunk

Memory = Literal["eager", "checkpoint", "flat"]
Transform = Literal["linear", "nonlinear", "linear_kernelonly", "nonlinear_kernelonly"]
Weights = Literal["mean", "sum", "quadrature", "attention"]

# The bytes of a chunk with chunk="auto": larger chunks save little time, smaller ones little memory.
CHUNK_BYTES = 96 * MIB
# The share of a GPU's memory if each layer launches its own kernels: the launches cost as much time as
# 50,000 edges.
CHUNK_SHARE = 0.02
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# Limit of edges in a chunk: a kernel's last block may extend beyond them, and its indices must fit 32 bits.
_CHUNK_MOST = 2**30
_INDEX_BYTES = (
    36  # a row (4), a sorted source with its position (4 + 8), and the temporary memory of the sort (20)
)


def edge_transform(
    mlp: nn.Module,
    x: Tensor,
    y: Tensor,
    f: Tensor | None,
    edges: Edges | Tensor,
    *,
    memory: Memory = "flat",
    chunk: int | Literal["auto"] = "auto",
    transform: Transform = "linear",
    weights: Weights = "mean",
    quadrature: Tensor | None = None,
    attention: nn.Module | None = None,
) -> Tensor:
    """Transform f from the sources to the queries and return (Q, C).

    mlp: (e, 2d) -> (e, C), or (e, 2d + C) -> (e, C) for the nonlinear transforms; its input is [y, x], then
    f. x: (Q, d) queries, the destinations; y: (S, d) sources; f: (S, C) at the sources, None for
    linear_kernelonly. edges: `Edges`, or a (2, E) index of (source, destination) in any order. transform:
    `linear` multiplies the kernel by f, `nonlinear` also feeds f to the kernel; the kernel-only variants omit
    the product. weights: `mean` over a row, plain `sum`, `quadrature` with a weight (S,) per source, or
    `attention`, a softmax over each row of attention(y - x): (e, d) -> (e, 1). chunk: edges processed
    together. Queries without edges get zeros.
    """
    _check_kinds(mlp, x, y, f, quadrature, attention)
    graph = (
        edges if isinstance(edges, Edges) else Edges.from_index(edges, queries=x.shape[0], sources=y.shape[0])
    )
    _check(
        x,
        y,
        f,
        graph,
        memory=memory,
        transform=transform,
        weights=weights,
        quadrature=quadrature,
        attention=attention,
    )
    kernel = EdgeKernel(transform, weights)
    wide = 2 * x.shape[1] + (f.shape[1] if f is not None and transform.startswith("nonlinear") else 0)
    points_dtype = torch.promote_types(x.dtype, y.dtype)
    inputs_dtype = (
        torch.promote_types(points_dtype, f.dtype)
        if f is not None and transform.startswith("nonlinear")
        else points_dtype
    )
    _check_module("mlp", mlp, x.new_empty(0, wide, dtype=inputs_dtype), memory)
    if attention is not None:
        _check_module("attention", attention, x.new_empty(0, x.shape[1], dtype=points_dtype), memory)
    modules = nn.ModuleDict({"mlp": mlp} | ({"attention": attention} if attention is not None else {}))
    fixed_chunk = _chunk(chunk)
    if memory == "eager" or not graph.count:
        return kernel.rows(modules, x, y, f, quadrature, Rows.all_of(graph))
    by_hand = memory == "flat"
    size = fixed_chunk or auto_chunk(mlp, x, y, f, transform=transform, attention=attention, by_hand=by_hand)
    size = min(size, _CHUNK_MOST)
    if memory == "checkpoint":
        parts = row_chunks(graph, size)
        return torch.cat(
            [
                checkpoint(kernel.rows, modules, x, y, f, quadrature, part, use_reentrant=False)
                for part in parts
            ]
        )
    reads_f = f is not None and transform.startswith("nonlinear")
    times_f = f is not None and not transform.endswith("kernelonly")
    parts = list(row_chunks(graph, size, split_rows=True))
    job = Job(mlp, attention, reads_f, times_f, weights, chunks_to_trace(parts) if is_fake(x) else parts)
    return flat_rows(job, x, y, f if reads_f or times_f else None, quadrature)


def auto_chunk(
    mlp: nn.Module,
    x: Tensor,
    y: Tensor,
    f: Tensor | None,
    *,
    transform: Transform = "linear",
    attention: nn.Module | None = None,
    budget_bytes: int | None = None,
    by_hand: bool = True,
) -> int:
    """The number of edges for which a training chunk takes at most `budget_bytes`.

    The default budget is 96 MiB, or a fiftieth of the GPU's memory if that is more and the network does not
    run as one kernel. by_hand: assume the backward pass of `flat`; autograd saves more bytes per edge.
    """
    if budget_bytes is None:
        budget_bytes = CHUNK_BYTES
        if x.is_cuda and not (by_hand and is_one_kernel(mlp, like=x)):
            budget_bytes = max(
                CHUNK_BYTES, int(CHUNK_SHARE * torch.cuda.get_device_properties(x.device).total_memory)
            )
    dims = x.shape[1] + y.shape[1]
    width = dims + (f.shape[1] if f is not None and transform.startswith("nonlinear") else 0)
    wide = max(x.element_size(), 4)
    # Inputs, row and sorted sources; the gradients of the kernel and of f; and what the network itself needs.
    own = width * wide + _INDEX_BYTES + 2 * (f.shape[1] if f is not None else 1) * wide
    own += edge_bytes(mlp, width, like=x, by_hand=by_hand)
    if attention is not None:
        own += edge_bytes(attention, x.shape[1], like=x, by_hand=by_hand) + 4 * wide
    return largest_chunk(fixed_bytes=0, bytes_per_point=own, budget_bytes=budget_bytes)


@dataclass(frozen=True)
class EdgeKernel:
    """The computation for a chunk of rows, the same for every `memory`."""

    transform: Transform
    weights: Weights

    def rows(
        self,
        modules: nn.ModuleDict,
        x: Tensor,
        y: Tensor,
        f: Tensor | None,
        quadrature: Tensor | None,
        rows: Rows,
    ) -> Tensor:
        """The transform of a chunk's rows: (q, C). x: (Q, d), y: (S, d), f: (S, C)."""
        return self.reduce(modules, *self.gather(x, y, f, quadrature, rows), rows)

    def gather(
        self, x: Tensor, y: Tensor, f: Tensor | None, quadrature: Tensor | None, rows: Rows
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The values at the ends of each edge: (e, d), (e, d), (e, C), (e,)."""
        sources = rows.sources()

        def at_edges(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.index_select(0, sources)

        return (
            x.index_select(0, rows.destinations()),
            y.index_select(0, sources),
            at_edges(f),
            at_edges(quadrature),
        )

    def reduce(
        self,
        modules: nn.ModuleDict,
        x_e: Tensor,
        y_e: Tensor,
        f_e: Tensor | None,
        q_e: Tensor | None,
        rows: Rows,
    ) -> Tensor:
        """Reduce the values at edges to their destination rows: (q, C)."""
        inputs = [y_e, x_e] if f_e is None or self.transform.startswith("linear") else [y_e, x_e, f_e]
        values = modules["mlp"](torch.cat(inputs, dim=1))
        if f_e is not None and not self.transform.endswith("kernelonly"):
            check_channels(values, f_e)
            values = values * f_e
        if self.weights == "quadrature":
            assert q_e is not None
            values = values * q_e[:, None]
        elif self.weights == "attention":
            score = modules["attention"](y_e - x_e)
            check_score(score)
            values = values * rows.softmax(score)
        sums = rows.sum(values)
        return sums / rows.degrees().clamp_min(1)[:, None] if self.weights == "mean" else sums


def _chunk(chunk: int | str) -> int | None:
    """The edges of a chunk, or None for `auto`."""
    if isinstance(chunk, str) and chunk == "auto":
        return None
    number = whole_number(chunk)
    if number is None or not 1 <= number <= INT32_MOST:
        value = repr(chunk) if number is None else f"{number:,} edges"
        raise BadInput(
            f"The chunk is {value}; it must be 1 to {INT32_MOST:,} edges, or 'auto'.",
            hint="Give chunk='auto', or a positive number of edges.",
        )
    return number


def _check_kinds(
    mlp: nn.Module,
    x: Tensor,
    y: Tensor,
    f: Tensor | None,
    quadrature: Tensor | None,
    attention: nn.Module | None,
) -> None:
    require_module("mlp", mlp, reads="(e, 2d) to (e, C)")
    if attention is not None:
        require_module("attention", attention, reads="(e, d) to (e, 1)")
    for name, value in (("x", x), ("y", y), ("f", f), ("quadrature", quadrature)):
        if value is not None or name in "xy":
            require_tensor(name, value)
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1]:
        raise BadInput(
            f"`x` has shape {tuple(x.shape)} and `y` has shape {tuple(y.shape)}, not (Q, d) and (S, d).",
            hint="Give both two axes, with the same number of coordinates.",
        )


def _check(
    x: Tensor,
    y: Tensor,
    f: Tensor | None,
    edges: Edges,
    *,
    memory: str,
    transform: str,
    weights: str,
    quadrature: Tensor | None,
    attention: nn.Module | None,
) -> None:
    for option, value, choices in (
        ("memory", memory, Memory),
        ("transform", transform, Transform),
        ("weights", weights, Weights),
    ):
        if value not in get_args(choices):
            raise BadInput(
                f"The {option} {value!r} does not exist.", hint=f"Use one of: {', '.join(get_args(choices))}."
            )
    if edges.queries != x.shape[0] or edges.source_count != y.shape[0]:
        raise BadInput(
            f"The edges join {edges.source_count:,} sources to {edges.queries:,} queries, but `y` has "
            f"{y.shape[0]:,} points and `x` has {x.shape[0]:,}.",
            hint="Build the edges from these points: radius_edges(x, y, radius).",
        )
    if f is None and transform != "linear_kernelonly":
        raise BadInput(
            f"The transform {transform!r} needs `f`, which is None.",
            hint="Give f: (S, C), or transform='linear_kernelonly'.",
        )
    if f is not None and (f.dim() != 2 or f.shape[0] != y.shape[0]):
        hint = "Give f one row per source: (S, C)" + ("; one channel is f[:, None]." if f.dim() == 1 else ".")
        raise BadInput(f"`f` has shape {tuple(f.shape)}, but there are {y.shape[0]:,} sources.", hint=hint)
    if quadrature is not None and quadrature.shape != y.shape[:1]:
        raise BadInput(
            f"`quadrature` has shape {tuple(quadrature.shape)}, but there are {y.shape[0]:,} sources.",
            hint="Give one number per source: (S,).",
        )
    if (quadrature is None) == (weights == "quadrature"):
        raise BadInput(
            "weights='quadrature' and quadrature= must be given together.",
            hint="Give both, with quadrature of shape (S,), or neither.",
        )
    if (attention is None) == (weights == "attention"):
        raise BadInput(
            "weights='attention' and attention= must be given together.",
            hint="Give both, with a module that maps (e, d) to (e, 1), or neither.",
        )


def _check_module(name: str, module: nn.Module, inputs: Tensor, memory: Memory) -> None:
    """Raise `BadInput` if a network does not match the edges' inputs, or if its outputs depend on the chunks.

    inputs: (0, width) in the dtype of an edge's inputs.
    """
    layers, width, dtype = layers_of(module), inputs.shape[1], arithmetic(inputs)
    if layers is not None and layers[0][0].in_features != width:
        raise BadInput(
            f"`{name}` takes {layers[0][0].in_features} inputs, but an edge has {width}.",
            hint="Give an mlp of [y, x] (2d inputs; 2d + C with f in the nonlinear transforms), "
            "and an attention of y - x (d inputs).",
        )
    for layer, _ in layers or ():
        # Autocast casts weights, and a user's module may do so too.
        if layer.weight.dtype is not dtype and dtype is inputs.dtype:
            raise BadInput(
                f"`{name}` is in {layer.weight.dtype}, but the edges are in {dtype}.",
                hint=f"Convert it: {name}.to({dtype}).",
            )
    if memory == "eager" or layers is not None:
        return
    for part in module.modules():
        # A checkpoint draws the same random numbers again; `flat` does not.
        drops = memory == "flat" and isinstance(part, _DROPOUTS) and part.training and part.p > 0
        if drops or (isinstance(part, nn.BatchNorm1d) and (part.training or part.running_mean is None)):
            raise BadInput(
                f"`{name}` has a {type(part).__name__} in training mode, which gives different results "
                "when it is computed again or in chunks.",
                hint=f"Use memory={'checkpoint' if drops else 'eager'!r}, or call eval() on that layer.",
            )
