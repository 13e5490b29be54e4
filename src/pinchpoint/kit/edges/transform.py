"""The integral transform of neural operators: an MLP over edges, reduced to the nodes they lead to.

    out[q] = sum over edges (s -> q) of weight * kernel * f[s]

`memory` chooses how it is computed, never what: `eager` holds every edge's features for backward,
`checkpoint` and `flat` go through the edges in chunks of whole rows and compute them again in
backward. `flat` holds nothing that grows with the edges beside the graph itself.
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
from pinchpoint.kit.edges.row_chunks import Rows, looked_at, row_chunks
from pinchpoint.kit.validation import require_module, require_tensor, whole_number
from pinchpoint.planning.chunk_size import largest_chunk

Memory = Literal["eager", "checkpoint", "flat"]
Transform = Literal["linear", "nonlinear", "linear_kernelonly", "nonlinear_kernelonly"]
Weights = Literal["mean", "sum", "quadrature", "attention"]

CHUNK_BYTES = (
    96 * MIB
)  # what chunk="auto" lets a chunk take: more saves little time, less saves little memory
# Of a card's memory, where each layer is kernels of its own: their launches cost as much as 50,000 edges do.
CHUNK_SHARE = 0.02
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_CHUNK_MOST = (
    2**30
)  # edges at one time: a kernel's last block may pass them, and still be numbered in 32 bits
_INDEX_BYTES = 36  # a row (4), and a source sorted with its place (4 + 8) beside what sorting takes (20)


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
    """Transform f from its points to others. Returns (Q, C).

    mlp: (e, 2d) -> (e, C), or (e, 2d + C) for the nonlinear transforms; its input is [y, x] and f last.
    x: (Q, d) queries, the destinations; y: (S, d) sources; f: (S, C) carried by the sources, None for
    linear_kernelonly. edges: `Edges`, or a (2, E) index of (source, destination) in any order.
    transform: `linear` multiplies the kernel with f, `nonlinear` also feeds f to the kernel; the
    kernel-only forms leave the product out. weights: `mean` over a row, plain `sum`, `quadrature`
    (S,) given by the source, or `attention`, a softmax over each row of attention(y - x): (e, d) -> (e, 1).
    chunk: edges at one time. Queries without edges get zeros.
    """
    _check_kinds(mlp, x, y, f, quadrature, attention)
    graph = (
        edges if isinstance(edges, Edges) else Edges.of_index(edges, queries=x.shape[0], sources=y.shape[0])
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
    places = torch.promote_types(x.dtype, y.dtype)
    reads = (
        torch.promote_types(places, f.dtype)
        if f is not None and transform.startswith("nonlinear")
        else places
    )
    _check_module("mlp", mlp, x.new_empty(0, wide, dtype=reads), memory)
    if attention is not None:
        _check_module("attention", attention, x.new_empty(0, x.shape[1], dtype=places), memory)
    modules = nn.ModuleDict({"mlp": mlp} | ({"attention": attention} if attention is not None else {}))
    asked = _chunk(chunk)
    if memory == "eager" or not graph.count:
        return kernel.rows(modules, x, y, f, quadrature, Rows.all_of(graph))
    by_hand = memory == "flat"
    size = asked or auto_chunk(mlp, x, y, f, transform=transform, attention=attention, by_hand=by_hand)
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
    parts = list(row_chunks(graph, size, cut=True))
    job = Job(mlp, attention, reads_f, times_f, weights, looked_at(parts) if is_fake(x) else parts)
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
    """The edges that go through at one time so that a training chunk takes at most `budget_bytes`.

    Without a budget: 96 MiB, or a fiftieth of the card where that is more and the network does not run as one kernel.
    by_hand: the backward pass is `flat`'s own; autograd keeps more of an edge.
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
    # Inputs, row and sorted sources; the gradient of the kernel and that of f; the network's own.
    own = width * wide + _INDEX_BYTES + 2 * (f.shape[1] if f is not None else 1) * wide
    own += edge_bytes(mlp, width, like=x, by_hand=by_hand)
    if attention is not None:
        own += edge_bytes(attention, x.shape[1], like=x, by_hand=by_hand) + 4 * wide
    return largest_chunk(fixed_bytes=0, bytes_per_point=own, budget_bytes=budget_bytes)


@dataclass(frozen=True)
class EdgeKernel:
    """What is done for a run of rows; the same for every way to hold memory."""

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
        """(q, C) of the rows. x: (Q, d), y: (S, d), f: (S, C)."""
        return self.reduce(modules, *self.gathered(x, y, f, quadrature, rows), rows)

    def gathered(
        self, x: Tensor, y: Tensor, f: Tensor | None, quadrature: Tensor | None, rows: Rows
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """What the rows' edges read, edge by edge: (e, d), (e, d), (e, C), (e,)."""
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
        """From values at edges to (q, C) at the rows they lead to."""
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
        summed = rows.sum(values)
        return summed / rows.degrees().clamp_min(1)[:, None] if self.weights == "mean" else summed


def _chunk(chunk: int | str) -> int | None:
    """Edges at one time; None for `auto`."""
    if isinstance(chunk, str) and chunk == "auto":
        return None
    number = whole_number(chunk)
    if number is None or not 1 <= number <= INT32_MOST:
        shown = repr(chunk) if number is None else f"{number:,} edges"
        raise BadInput(f"a chunk of {shown}", hint=f"give a chunk of 1 to {INT32_MOST:,} edges, or 'auto'")
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
            f"points of shapes {tuple(x.shape)} and {tuple(y.shape)}", hint="give x: (Q, d) and y: (S, d)"
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
    for what, given, known in (
        ("memory", memory, Memory),
        ("transform", transform, Transform),
        ("weights", weights, Weights),
    ):
        if given not in get_args(known):
            raise BadInput(f"unknown {what} {given!r}", hint=f"use one of: {', '.join(get_args(known))}")
    if edges.queries != x.shape[0] or edges.source_count != y.shape[0]:
        raise BadInput(
            f"edges from {edges.source_count:,} to {edges.queries:,} points, where y has {y.shape[0]:,} and x {x.shape[0]:,}",
            hint="make the edges from these points: radius_edges(x, y, radius)",
        )
    if f is None and transform != "linear_kernelonly":
        raise BadInput(
            f"transform {transform!r} without f", hint="give f: (S, C), or transform='linear_kernelonly'"
        )
    if f is not None and (f.dim() != 2 or f.shape[0] != y.shape[0]):
        hint = "f has a row for every source: (S, C)" + (
            "; one channel is f[:, None]" if f.dim() == 1 else ""
        )
        raise BadInput(f"f of shape {tuple(f.shape)} for {y.shape[0]:,} sources", hint=hint)
    if quadrature is not None and quadrature.shape != y.shape[:1]:
        raise BadInput(
            f"quadrature of shape {tuple(quadrature.shape)} for {y.shape[0]:,} sources",
            hint="give one number a source: (S,)",
        )
    if (quadrature is None) == (weights == "quadrature"):
        raise BadInput(
            "weights='quadrature' and quadrature= go together",
            hint="give both, quadrature of shape (S,), or neither",
        )
    if (attention is None) == (weights == "attention"):
        raise BadInput(
            "weights='attention' and attention= go together",
            hint="give both, a module (e, d) -> (e, 1), or neither",
        )


def _check_module(name: str, module: nn.Module, inputs: Tensor, memory: Memory) -> None:
    """Refuse a network for other inputs than the edges give, and one whose outputs depend on how it is called.

    inputs: (0, width) in the dtype that an edge's have.
    """
    layers, width, dtype = layers_of(module), inputs.shape[1], arithmetic(inputs)
    if layers is not None and layers[0][0].in_features != width:
        raise BadInput(
            f"{name} takes {layers[0][0].in_features} inputs where an edge has {width}",
            hint="mlp reads [y, x], and f last in the nonlinear transforms: 2d or 2d + C numbers; attention reads y - x: d",
        )
    for layer, _ in layers or ():
        if (
            layer.weight.dtype is not dtype and dtype is inputs.dtype
        ):  # autocast casts weights; so may a module of the user's
            raise BadInput(
                f"{name} in {layer.weight.dtype} for edges in {dtype}",
                hint=f"give one dtype: {name}.to({dtype})",
            )
    if memory == "eager" or layers is not None:
        return
    for part in module.modules():
        # A checkpoint draws the same numbers again; `flat` does not.
        drops = memory == "flat" and isinstance(part, _DROPOUTS) and part.training and part.p > 0
        if drops or (isinstance(part, nn.BatchNorm1d) and (part.training or part.running_mean is None)):
            raise BadInput(
                f"{name} with {type(part).__name__} in training: computed again, or in chunks, it gives something else",
                hint=f"use memory={'checkpoint' if drops else 'eager'!r}, or call eval() on that layer",
            )
