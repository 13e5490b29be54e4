"""The operator as a workload: one edge transform, or the whole model, over a graph of exactly `size` edges.

Letters: P points, L tokens, E edges, C = 16 channels. `encoder`: rows are tokens, sources points; `decoder`:
the other way round; both are one transform whose values f get a gradient too, as if from an earlier layer.
`full`: the whole model, with half of the edges into tokens and half into points. Training is a step of Adam
on the mean square of the outputs; inference returns the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import MIB
from pinchpoint.core.workload import Case, Probe
from pinchpoint.kit import Edges, edge_transform
from pinchpoint.kit.edges.auto_chunk import auto_chunk
from pinchpoint.kit.edges.edge_mlp import fixed_bytes, flat_path
from pinchpoint.kit.edges.transform import Memory
from pinchpoint.systems.operator import CHUNK
from pinchpoint.systems.operator.data.sheet import LATTICE, Sheet, reach
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.model.kernels import mlp_of
from pinchpoint.systems.operator.model.model import Operator

CHANNELS = 16
CHECKPOINT_CHUNK = 32_768  # edges; with three layers of 128, autograd saves 3.7 kB per edge
FLAT_CHUNK_BYTES = 64 * MIB
FEATURES = 7  # inputs of the whole model: normal, onset flow, clearance

Chunk = int | Literal["auto"]


@dataclass(frozen=True)
class Part:
    """The part of the model to run.

    `forward` returns (Q, C) or (P, T); `values` are inputs with a gradient.
    """

    module: nn.Module
    values: Tensor
    forward: Callable[[], Tensor]
    edges: int


@dataclass(frozen=True)
class TransformInputs:
    """The network, the queries x, the sources y, their values f: (S, C), and the graph of a transform."""

    mlp: nn.Sequential
    x: Tensor
    y: Tensor
    f: Tensor
    edges: Edges


def build(
    size: int,
    *,
    device: str,
    mode: str,
    variant: str,
    seed: int,
    chunk: int | None = None,
    settings: dict[str, str],
) -> Case:
    """One case. `eager` does not use chunks."""
    if chunk is not None and chunk < 1:
        raise BadInput(
            f"The chunk is {chunk} edges; it must be at least 1.", hint="Give a chunk of at least 1 edge."
        )
    torch.manual_seed(seed)
    hidden = tuple(int(width) for width in settings["mlp"].split(","))
    channels, dimension = int(settings["channels"]), int(settings["dimension"])
    make = _whole if settings["part"] == "full" else _transform
    memory = cast(Memory, variant)
    chunk_size = chunk or (CHECKPOINT_CHUNK if variant == "checkpoint" else "auto")
    part = make(
        size,
        settings["part"],
        hidden,
        channels,
        dimension,
        memory=memory,
        chunk=chunk_size,
        seed=seed,
        device=device,
        train=mode == "train",
    )
    run = _in_half(part.forward, device) if settings["precision"] == "bf16" else part.forward
    return Case(
        step=training_step(part, run) if mode == "train" else torch.no_grad()(run),
        processed=part.edges,
        probe=lambda: probe_part(part, run, gradients=mode == "train"),
    )


def _transform(
    size: int,
    part: str,
    hidden: tuple[int, ...],
    channels: int,
    dimension: int,
    *,
    memory: Memory,
    chunk: Chunk,
    seed: int,
    device: str,
    train: bool,
) -> Part:
    """One edge transform between the sheet's points and the lattice."""
    inputs = transform_inputs(
        size, part, hidden, channels=channels, dimension=dimension, seed=seed, device=device, train=train
    )
    mlp, x, y, f, edges = inputs.mlp, inputs.x, inputs.y, inputs.f, inputs.edges
    if chunk == "auto":
        chunk = _flat_chunk(mlp, x, y, f)
    return Part(mlp, f, lambda: edge_transform(mlp, x, y, f, edges, memory=memory, chunk=chunk), edges.count)


def transform_inputs(
    size: int,
    part: str,
    hidden: tuple[int, ...],
    *,
    channels: int = CHANNELS,
    dimension: int = 3,
    seed: int,
    device: str,
    train: bool,
) -> TransformInputs:
    """Return the inputs of one edge transform with this many edges; the random state must be seeded.

    dimension=2 keeps the graph and drops the height of points and tokens.
    """
    sheet = Sheet(size)
    points, tokens = (
        places[:, :dimension].contiguous()
        for places in (sheet.points(seed=seed, device=device), LATTICE.points(device=device))
    )
    edges: Edges = sheet.into_tokens(device) if part == "encoder" else sheet.into_points(device)
    x, y = (tokens, points) if part == "encoder" else (points, tokens)
    mlp = mlp_of((2 * dimension, *hidden, channels)).to(device)
    f = torch.randn(len(y), channels, device=device, requires_grad=train)
    return TransformInputs(mlp, x, y, f, edges)


def _whole(
    size: int,
    part: str,
    hidden: tuple[int, ...],
    channels: int,
    dimension: int,
    *,
    memory: Memory,
    chunk: Chunk,
    seed: int,
    device: str,
    train: bool,
) -> Part:
    """The whole model: lift, encoder, patch transformer, decoder.

    dimension=2 keeps the graph and the lattice; the edge MLPs do not read the height.
    """
    if size < 2:
        raise BadInput(
            f"The size is {size}, but the encoder and the decoder need an edge each.",
            hint="Give a size of at least 2.",
        )
    sheet = Sheet(size - size // 2)
    config = OperatorConfig(
        in_features=FEATURES,
        out_features=1,
        low=_triple(LATTICE.low),
        high=_triple(LATTICE.high),
        radii=(reach(),),
        lattice=_triple(LATTICE.shape),
        mlp=hidden,
        channels=channels,
        dimension=dimension,
        geometry="none",
    )
    into_points = sheet.into_points(device)
    if size % 2:  # the decoder's half is the smaller one: drop its last edge
        into_points = _without_last(into_points)
    graph = Graph(encoder=(sheet.into_tokens(device),), decoder=(into_points,))
    points = sheet.points(seed=seed, device=device)
    features = torch.randn(len(points), FEATURES, device=device, requires_grad=train)
    areas = torch.full((len(points),), 4.0 / len(points), device=device)
    model = Operator(config).to(device)
    if chunk == "auto":
        kernel = next(iter(model.encoder.kernels))
        x, y = model.scaling.tokens[:, :dimension], points[:, :dimension]
        chunk = _flat_chunk(kernel, x, y, points.new_empty(1, channels))
    return Part(
        model,
        features,
        lambda: model(points, features, areas, graph, memory=memory, chunk=chunk),
        graph.edges,
    )


def _flat_chunk(mlp: nn.Module, x: Tensor, y: Tensor, f: Tensor) -> int:
    budget_bytes = FLAT_CHUNK_BYTES + fixed_bytes(flat_path(mlp, like=x), like=x)
    return min(CHUNK, auto_chunk(mlp, x, y, f, budget_bytes=budget_bytes))


def _without_last(edges: Edges) -> Edges:
    starts = edges.starts.clip(max=edges.count - 1)
    return Edges(
        torch.from_numpy(starts).to(edges.sources.device), edges.sources[:-1], edges.source_count, starts
    )


def _triple(values: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    x, y, z = values
    return x, y, z


def _in_half(forward: Callable[[], Tensor], device: str) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            return forward()

    return run


def training_step(part: Part, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return a step of Adam on the mean square of what `run` returns."""
    optimizer = torch.optim.Adam(part.module.parameters(), lr=1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        part.values.grad = None
        loss = run().float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def probe_part(part: Part, run: Callable[[], Tensor], *, gradients: bool) -> Probe:
    """The outputs, the loss, and the gradients of every weight and of the inputs."""
    part.module.zero_grad()
    part.values.grad = None
    with torch.set_grad_enabled(gradients):
        values = run().float()
        # Not even in the values, unlike the training loss, so that a wrong sign is detected.
        loss = (values + 0.25 * values.square()).mean()
    if gradients:
        loss.backward()
    gradients_by_name = (
        {name: p.grad for name, p in part.module.named_parameters()} | {"values": part.values.grad}
        if gradients
        else {}
    )
    return Probe(
        outputs={"values": _array(values), "loss": _array(loss)},
        gradients={
            name: None if gradient is None else _array(gradient)
            for name, gradient in gradients_by_name.items()
        },
    )


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy().copy()
