"""The edge transform and the whole operator: a training step of every variant, and of two public libraries.

The GAOT-3D memory guide asks how the peak of the encoder, the decoder, and the whole model grows with the
edges, up to a million of them. The peers compute the same edge transform on the same graph, with the same
weights. neuralop reduces with a Python loop over rows if torch-scatter is not installed, so it is also timed
with a reduction in one call.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import Missing
from pinchpoint.core.workload import Probe
from pinchpoint.systems.common.bench.cases import (
    BenchCase,
    Contender,
    Contest,
    Run,
    Setup,
    Sizes,
    imported,
    operations_floor,
)
from pinchpoint.systems.common.bench.workload_contest import agreement, probe_of, variant_contender
from pinchpoint.systems.operator import WORKLOAD
from pinchpoint.systems.operator.workload import (
    CHANNELS,
    Part,
    TransformInputs,
    probe_part,
    training_step,
    transform_inputs,
)

MLP: dict[Sizes, str] = {"tiny": "8,8", "small": "128,128,128", "report": "128,128,128"}
# Edges per chunk that suit the fused kernel of a GPU; the workload's own chunk saves memory instead.
FAST_CHUNK = 398_000
CHECK_EDGES = 20_000
CLAIM = (
    "The GAOT-3D memory guide expects a peak that grows linearly with the edges, and 1.5 to 3 times as much "
    "memory for training as for inference; it gives no times."
)
Forward = Callable[[TransformInputs], Callable[[], Tensor]]


def cases() -> tuple[BenchCase, ...]:
    return (
        BenchCase(
            "transform",
            "a training step of the edge transform (encoder)",
            CLAIM,
            "edges",
            {"tiny": 2_000, "small": 65_536, "report": 1_000_000},
            build_transform,
        ),
        BenchCase(
            "operator",
            "a training step of the whole operator",
            CLAIM,
            "edges",
            {"report": 1_000_000},  # its transformer over the lattice alone takes many seconds on a CPU
            build_operator,
        ),
    )


def build_transform(setup: Setup) -> Contest:
    settings = {"part": "encoder", "mlp": MLP[setup.sizes]}
    contenders = [*_variants(setup, settings)]
    if setup.device == "cuda":
        contenders.append(_half_precision(setup, settings))
    peers: dict[str, tuple[Forward, str]] = {
        "PyG MessagePassing": (message_passing, "torch-geometric's way to write an edge MLP with a mean"),
        "neuralop, vectorised reduction": (
            lambda inputs: neural_operator(inputs, vectorised=True),
            "its IntegralTransform, with torch.segment_reduce instead of its loop over rows",
        ),
        "neuralop": (
            lambda inputs: neural_operator(inputs, vectorised=False),
            "its IntegralTransform without torch-scatter, which loops over rows in Python",
        ),
    }
    contenders += [_peer(setup, settings, name, *peer) for name, peer in peers.items()]
    hidden = _hidden(settings)
    macs = sum(a * b for a, b in pairwise((6, *hidden, CHANNELS)))
    # The first layer's input needs no gradient.
    operations = 2.0 * setup.size * (3 * macs - 6 * hidden[0])
    return Contest(
        contenders,
        settings,
        operations_floor(
            setup,
            operations,
            precision="fp32",
            what="products of the MLP in the forward and the backward pass, without recomputation",
        ),
        packages=("torch-geometric", "neuraloperator"),
    )


def build_operator(setup: Setup) -> Contest:
    settings = {"part": "full", "mlp": MLP[setup.sizes]}
    return Contest(_variants(setup, settings), settings)


def _variants(setup: Setup, settings: Mapping[str, str]) -> list[Contender]:
    size = min(CHECK_EDGES, setup.size)
    reference = cache(lambda: probe_of(WORKLOAD, setup, "eager", settings, size))

    def contender(variant: str, **options: Any) -> Contender:
        return variant_contender(
            WORKLOAD,
            setup,
            variant,
            settings=settings,
            reference=reference,
            check_size=size,
            tolerance=1e-5,
            **options,
        )

    contenders = [
        contender("eager", role="baseline", note="saves the features of every edge"),
        contender("checkpoint", note="chunks of 32,768 edges, recomputed by autograd"),
        contender("flat", note=f"chunks of {WORKLOAD.variant('flat').chunk:,} edges, backward pass by hand"),
    ]
    if setup.size > FAST_CHUNK:
        contenders.append(
            contender(
                "flat", name="flat, larger chunks", chunk=FAST_CHUNK, note=f"chunks of {FAST_CHUNK:,} edges"
            )
        )
    return contenders


def _half_precision(setup: Setup, settings: Mapping[str, str]) -> Contender:
    size = min(CHECK_EDGES, setup.size)
    return variant_contender(
        WORKLOAD,
        setup,
        "flat",
        name="flat, bf16",
        settings={**settings, "precision": "bf16"},
        reference=lambda: probe_of(WORKLOAD, setup, "eager", settings, size),
        check_size=size,
        tolerance=3e-2,
        chunk=FAST_CHUNK,
        note="autocast; equal within 3 %, the precision of bf16",
    )


def _peer(setup: Setup, settings: Mapping[str, str], name: str, forward: Forward, note: str) -> Contender:
    hidden, check_size = _hidden(settings), min(CHECK_EDGES, setup.size)

    def part_of(size: int) -> tuple[Part, Callable[[], Tensor]]:
        torch.manual_seed(setup.seed)
        inputs = transform_inputs(size, "encoder", hidden, seed=setup.seed, device=setup.device, train=True)
        run = forward(inputs)
        return Part(inputs.mlp, inputs.f, run, inputs.edges.count), run

    def make() -> Run:
        return training_step(*part_of(setup.size))

    def check(_: Any) -> Any:
        part, run = part_of(check_size)
        expected: Probe = probe_of(WORKLOAD, setup, "eager", settings, check_size)
        probe = probe_part(part, run, gradients=True)
        return agreement(expected, probe, tolerance=1e-4, size=check_size, axis=WORKLOAD.axis)

    return Contender(name, make, "peer", check=check, note=note)


def _hidden(settings: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(int(width) for width in settings["mlp"].split(","))


def message_passing(inputs: TransformInputs) -> Callable[[], Tensor]:
    """Return the transform written with torch-geometric's MessagePassing."""
    base: Any = imported("torch_geometric.nn", "torch-geometric").MessagePassing
    mlp, x, y, f = inputs.mlp, inputs.x, inputs.y, inputs.f
    index = torch.stack([inputs.edges.sources.long(), inputs.edges.destinations().long()])

    empty = f.new_zeros(len(x), f.shape[1])

    class Transform(base):
        def __init__(self) -> None:
            super().__init__(aggr="mean")

        # MessagePassing reads the arguments of `propagate` from the source of this class.
        def forward(self) -> Tensor:
            return self.propagate(index, at=(y, x), value=(f, empty), size=(len(y), len(x)))

        def message(self, at_j: Tensor, at_i: Tensor, value_j: Tensor) -> Tensor:
            return mlp(torch.cat([at_j, at_i], dim=1)) * value_j

    return Transform()


def neural_operator(inputs: TransformInputs, *, vectorised: bool) -> Callable[[], Tensor]:
    """Return the transform computed by neuralop's IntegralTransform. vectorised: without its Python loop."""
    module = neuralop_module("neuralop.layers.integral_transform")
    layer: nn.Module = module.IntegralTransform(
        channel_mlp=inputs.mlp, reduction="mean", use_torch_scatter=False
    )
    neighbours = {
        "neighbors_index": inputs.edges.sources.long(),
        "neighbors_row_splits": inputs.edges.offsets,
    }
    own_reduction = sys.modules["neuralop.layers.segment_csr"].segment_csr

    def run() -> Tensor:
        module.segment_csr = segment_mean if vectorised else own_reduction
        return layer(y=inputs.y, x=inputs.x, f_y=inputs.f, neighbors=neighbours)

    return run


def segment_mean(src: Tensor, indptr: Tensor, reduction: str, use_scatter: bool = False) -> Tensor:
    """Compute neuralop's reduction of this signature in one call. src: (E, C); indptr: (Q + 1,)."""
    assert reduction == "mean" and src.dim() == 2
    sums = torch.segment_reduce(src, "sum", offsets=indptr, axis=0, unsafe=True, initial=0)
    return sums / indptr.diff().clamp_min(1)[:, None]


def neuralop_module(name: str) -> Any:
    """Import a module of neuralop without running the package's `__init__`.

    That would import loggers and data readers which its layers do not use.
    """
    if "neuralop" not in sys.modules:
        spec = importlib.util.find_spec("neuralop")
        if spec is None or not spec.submodule_search_locations:
            raise Missing(
                "The package neuraloperator is not installed.", hint="Run pip install neuraloperator."
            )
        root = Path(next(iter(spec.submodule_search_locations)))
        for package in ("neuralop", "neuralop.layers"):
            bare = ModuleType(package)
            bare.__path__ = [str(root.joinpath(*package.split(".")[1:]))]
            sys.modules[package] = bare
    return imported(name, "neuraloperator")
