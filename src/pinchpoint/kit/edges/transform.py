"""The integral transform of neural operators: an MLP over edges, reduced to their destinations.

    out[q] = sum over edges (s -> q) of weight * kernel * f[s]

or, with weights="max", the largest of kernel * f[s], channel by channel.
`memory` changes how the result is computed, not its value: `eager` saves the features of every edge for
backward; `checkpoint` and `flat` process the edges in chunks of whole rows and recompute them in
backward. With `flat`, nothing but the graph itself grows with the edges.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import MIB
from pinchpoint.kit.edges.auto_chunk import auto_chunk, chunk_bytes, inputs_of
from pinchpoint.kit.edges.autograd_mlp import require_rows
from pinchpoint.kit.edges.edge_mlp import FlatPath, Layers, arithmetic, layers_of, path_of
from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.kit.edges.edges import INT32_MOST, Edges
from pinchpoint.kit.edges.flat_plan import FlatPlan, keep_in, plan_key
from pinchpoint.kit.edges.flat_transform import Job, check_channels, check_score, flat_rows
from pinchpoint.kit.edges.independence import MOST_EDGES, can_check, require_independent
from pinchpoint.kit.edges.row_chunks import Rows, chunks_to_trace, row_chunks
from pinchpoint.kit.validation import require_module, require_tensor, whole_number

Memory = Literal["eager", "checkpoint", "flat"]
Transform = Literal["linear", "nonlinear", "linear_kernelonly", "nonlinear_kernelonly"]
Weights = Literal["mean", "sum", "max", "quadrature", "attention"]

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_BATCH_NORMS = (nn.BatchNorm1d, nn.SyncBatchNorm)
# Limit of edges in a chunk: a kernel's last block may extend beyond them, and its indices must fit 32 bits.
_CHUNK_MOST = 2**30


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
    edge_attr: Tensor | None = None,
) -> Tensor:
    """Transform f from the sources to the queries and return (Q, C).

    mlp: (e, 2d) -> (e, C), or (e, 2d + C) -> (e, C) for the nonlinear transforms; its input is [y, x], then
    f, then edge_attr. x: (Q, d) queries, the destinations; y: (S, d) sources; f: (S, C) at the sources, None
    for linear_kernelonly. edges: `Edges`, or a (2, E) index of (source, destination) in any order; edge_attr:
    (E, A), one row for each edge, in that order. transform: `linear` multiplies the kernel by f, `nonlinear`
    also feeds f to the kernel; the kernel-only variants omit the product. weights: `mean` over a row, plain
    `sum`, `max` (the largest of each channel, whose gradient edges that are equally large share),
    `quadrature` with a weight (S,) per source, or `attention`, a softmax over each row of attention(y - x):
    (e, d) -> (e, 1). chunk: edges processed together. Queries without edges get zeros.
    """
    _check_kinds(mlp, x, y, f, quadrature, attention, edge_attr)
    graph = (
        edges if isinstance(edges, Edges) else Edges.from_index(edges, queries=x.shape[0], sources=y.shape[0])
    )
    if edge_attr is not None:
        _check_edge_attr(edge_attr, graph)
        if not isinstance(edges, Edges):
            edge_attr = edge_attr.index_select(0, torch.sort(edges[1], stable=True).indices)
    networks = {"mlp": (mlp, layers_of(mlp))}
    if attention is not None:
        networks["attention"] = attention, layers_of(attention)
    reads_f = f is not None and transform in ("nonlinear", "nonlinear_kernelonly")
    moves = _need_gradient(x, y, f if reads_f else None, edge_attr)
    plan, key = None, None
    if memory == "flat" and not is_fake(x):
        key = plan_key(networks, x, (y, f, quadrature, edge_attr), (chunk, transform, weights, moves))
        plan = None if key is None else graph.plans.get(key)
    if plan is None:
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
        likes = inputs_of(x, y, f if reads_f else None, edge_attr)
        for name, (module, layers) in networks.items():
            _check_module(name, module, layers, likes[name], memory)
        fixed_chunk = _chunk(chunk)
        kernel = EdgeKernel(transform, weights)
        if memory == "eager" or not graph.count:
            modules = nn.ModuleDict({name: module for name, (module, _) in networks.items()})
            return kernel.rows(modules, x, y, f, quadrature, edge_attr, Rows.all_of(graph))
        for name, (module, layers) in networks.items():
            if layers is None and graph.count > 1 and can_check(x):
                _check_edges_apart(name, module, x, y, f if reads_f else None, edge_attr, graph, memory)
        paths: dict[str, FlatPath] = {}
        if memory == "flat":
            paths = {name: path_of(*network, likes[name]) for name, network in networks.items()}
        size = fixed_chunk or auto_chunk(
            mlp,
            x,
            y,
            f,
            transform=transform,
            weights=weights,
            attention=attention,
            edge_attr=edge_attr,
            by_hand=memory == "flat",
            paths=paths,
            moves=moves,
        )
        size = min(size, _CHUNK_MOST)
        if memory == "checkpoint":
            modules = nn.ModuleDict({name: module for name, (module, _) in networks.items()})
            inputs = modules, x, y, f, quadrature, edge_attr
            rows = [
                checkpoint(kernel.rows, *inputs, part, use_reentrant=False)
                for part in row_chunks(graph, size)
            ]
            return torch.cat(rows)
        parts = list(row_chunks(graph, size, split_rows=True))
        parts = chunks_to_trace(parts) if is_fake(x) else parts
        budget = None if fixed_chunk else chunk_bytes(paths["mlp"], paths.get("attention"), likes)
        plan = FlatPlan.of(parts, paths, budget)
        if key is not None:
            plan.keep(graph, key)
    if not is_fake(x):
        _note_slow_paths(plan.paths, plan.chunk_bytes)
    ways = [plan.path(name, layers) for name, (_, layers) in networks.items()]
    times_f = f is not None and not transform.endswith("kernelonly")
    job = Job(mlp, attention, reads_f, times_f, weights, plan.parts(graph), *ways)
    return flat_rows(job, x, y, f if reads_f or times_f else None, quadrature, edge_attr)


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
        edge_attr: Tensor | None,
        rows: Rows,
    ) -> Tensor:
        """The transform of a chunk's rows: (q, C). x: (Q, d), y: (S, d), f: (S, C), edge_attr: (E, A)."""
        a_e = None if edge_attr is None else edge_attr[rows.begin : rows.end]
        return self.reduce(modules, *self.gather(x, y, f, quadrature, rows), a_e, rows)

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
        a_e: Tensor | None,
        rows: Rows,
    ) -> Tensor:
        """Reduce the values at edges to their destination rows: (q, C)."""
        inputs = [y_e, x_e] if f_e is None or self.transform.startswith("linear") else [y_e, x_e, f_e]
        inputs += [] if a_e is None else [a_e]
        values = modules["mlp"](torch.cat(inputs, dim=1))
        require_rows(modules["mlp"], values, rows.count)
        if f_e is not None and not self.transform.endswith("kernelonly"):
            check_channels(values, f_e)
            values = values * f_e
        if self.weights == "quadrature":
            assert q_e is not None
            values = values * q_e[:, None]
        elif self.weights == "attention":
            score = modules["attention"](y_e - x_e)
            require_rows(modules["attention"], score, rows.count)
            check_score(score)
            values = values * rows.softmax(score)
        if self.weights == "max":
            return rows.maximum(values)
        sums = rows.sum(values)
        return sums / rows.degrees().clamp_min(1)[:, None] if self.weights == "mean" else sums


def _need_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)


def _note_slow_paths(paths: dict[str, FlatPath], budget_bytes: int | None) -> None:
    """Warn if a network does not run by our kernels on a GPU, and say why and what a chunk takes."""
    for name, path in paths.items():
        if path.reason:
            chunks = "" if budget_bytes is None else f" Chunks take up to {budget_bytes / MIB:,.0f} MiB."
            warnings.warn(f"With memory='flat', `{name}` runs {path}{chunks}", stacklevel=3)


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
    edge_attr: Tensor | None,
) -> None:
    require_module("mlp", mlp, reads="(e, 2d) to (e, C)")
    if attention is not None:
        require_module("attention", attention, reads="(e, d) to (e, 1)")
    for name, value in (("x", x), ("y", y), ("f", f), ("quadrature", quadrature), ("edge_attr", edge_attr)):
        if value is not None or name in "xy":
            require_tensor(name, value)
            if name != "edge_attr" and not value.is_floating_point():  # type: ignore[union-attr]
                raise BadInput(
                    f"`{name}` is {value.dtype}; it must hold floating-point numbers.",  # type: ignore[union-attr]
                    hint=f"Convert it: {name}.float().",
                )
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1]:
        raise BadInput(
            f"`x` has shape {tuple(x.shape)} and `y` has shape {tuple(y.shape)}, not (Q, d) and (S, d).",
            hint="Give both two axes, with the same number of coordinates.",
        )


def _check_edge_attr(edge_attr: Tensor, edges: Edges) -> None:
    if edge_attr.dim() != 2 or edge_attr.shape[0] != edges.count:
        one = "; one number per edge is edge_attr[:, None]." if edge_attr.dim() == 1 else "."
        raise BadInput(
            f"`edge_attr` has shape {tuple(edge_attr.shape)}, but there are {edges.count:,} edges.",
            hint="Give edge_attr one row per edge: (E, A)" + one,
        )
    if not edge_attr.is_floating_point():
        raise BadInput(
            f"`edge_attr` is {edge_attr.dtype}; it must hold floating-point numbers.",
            hint="Convert it: edge_attr.float(); for kinds of edges, torch.nn.functional.one_hot.",
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


def _check_module(
    name: str, module: nn.Module, layers: Layers | None, inputs: Tensor, memory: Memory
) -> None:
    """Raise `BadInput` if a network does not match the edges' inputs, or if its outputs depend on the chunks.

    layers: `layers_of` it; inputs: (0, width) in the dtype of an edge's inputs.
    """
    width, dtype = inputs.shape[1], arithmetic(inputs)
    if layers is None and any(isinstance(one, nn.UninitializedParameter) for one in module.parameters()):
        raise BadInput(
            f"`{name}` has lazy layers that do not have weights yet.",
            hint=f"Give its layers their width, {width}, or call it once on (1, {width}).",
        )
    # PyG's MLP, for one, names its number of inputs like this.
    own_width = layers[0][0].in_features if layers is not None else getattr(module, "in_channels", width)
    if isinstance(own_width, int) and own_width != width:
        raise BadInput(
            f"`{name}` takes {own_width} inputs, but an edge has {width}.",
            hint="Give an mlp of [y, x] (2d inputs; 2d + C with f in the nonlinear transforms; then the A of "
            "edge_attr), and an attention of y - x (d inputs).",
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
        drops = memory == "flat" and part.training and drops_values(part)
        if drops or (isinstance(part, _BATCH_NORMS) and (part.training or part.running_mean is None)):
            raise BadInput(
                f"`{name}` has {_with_dropout(part) if drops else f'a {type(part).__name__}'} in training "
                "mode, which gives different results when it is computed again or in chunks.",
                hint=f"Use memory={'checkpoint' if drops else 'eager'!r}, or call eval() on that layer.",
            )
        if normalises_graph(part):
            raise BadInput(
                f"`{name}` has a {type(part).__name__} of PyG, which normalises over all edges of a graph; "
                f"with memory={memory!r} it would see one chunk of them.",
                hint="Use memory='eager', an MLP with norm=None, or LayerNorm(mode='node').",
            )


def _check_edges_apart(
    name: str,
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    f: Tensor | None,
    edge_attr: Tensor | None,
    graph: Edges,
    memory: Memory,
) -> None:
    """Raise `BadInput` if a few edges show that the network does not treat every edge by itself.

    f: only if the network reads it. A network is checked once for a graph and a state of its modes.
    """
    modes = tuple(part.training for part in module.modules())
    key = ("independent", memory, name, type(module).__qualname__, id(module), modes)
    if key in graph.plans:
        return
    with torch.no_grad():
        count = min(graph.count, MOST_EDGES)
        places = np.arange(count) * graph.count // count
        rows = np.searchsorted(graph.starts, places, side="right") - 1  # `starts` also checks the sources
        at = torch.from_numpy(places).to(x.device)
        x_e, sources = x[torch.from_numpy(rows).to(x.device)], graph.sources[at]
        if name == "attention":
            inputs = y[sources] - x_e
        else:
            others = [None if f is None else f[sources], None if edge_attr is None else edge_attr[at]]
            inputs = torch.cat([y[sources], x_e, *(one for one in others if one is not None)], dim=1)
    if require_independent(name, module, inputs, recomputes_chance=memory == "checkpoint"):
        keep_in(graph, key, True)


def drops_values(part: nn.Module) -> bool:
    """Whether a layer drops values at random when it trains, by itself or by a call in its forward."""
    if isinstance(part, _DROPOUTS):
        return part.p > 0
    # PyG's MLP and torch's MultiheadAttention call the function, with this attribute.
    shares = getattr(part, "dropout", None)
    return any(
        isinstance(share, int | float) and share > 0
        for share in (shares if isinstance(shares, list | tuple) else [shares])
    )


def normalises_graph(part: nn.Module) -> bool:
    """Whether a layer is a norm of PyG whose result for an edge depends on the other edges."""
    module = type(part).__module__
    if not module.startswith("torch_geometric.nn.norm."):
        return False
    by_row = getattr(part, "mode", None) == "node" or type(part).__name__ == "MessageNorm"
    return not by_row and type(part).__name__ != "BatchNorm"  # which holds a BatchNorm1d, checked by itself


def _with_dropout(part: nn.Module) -> str:
    name = type(part).__name__
    return f"a {name}" if isinstance(part, _DROPOUTS) else f"dropout in its {name}"
