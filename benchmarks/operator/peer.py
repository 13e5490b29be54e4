"""neuralop's GINO for the comparison: loaded alone, with precomputed neighbours and a vectorised reduce.

Nothing of neuralop is copied or changed on disk. Three things are replaced at run time, only for speed: its
package's `__init__` (which imports loggers and data readers that GINO does not use) is not run, the neighbour
search returns the graph of the body (the same that pinchpoint's operator reads), and the reduce over edges, a
Python loop over rows without torch-scatter, is one call of torch.

Letters: P points of a body, K features, T targets, L tokens of the lattice, E edges.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.kit import Lattice, lattice_edges
from pinchpoint.kit.edges.edges import Edges
from pinchpoint.systems.operator.data.sample import Sample

LOCAL_COPY = Path(__file__).parents[2] / "scratch" / "peer"
_SKIPPED = ("neuralop", "neuralop.models")  # packages whose __init__ is not run


class NoSuchSize(BadInput):
    """No GINO with these choices has about as many parameters as pinchpoint's operator."""


@dataclass(frozen=True)
class Choices:
    """The choices that define a GINO; its number of channels follows from the number of parameters."""

    # Fourier modes along an axis, as a fraction of the lattice's points.
    modes: Literal["quarter", "half"] = "quarter"
    factorization: Literal["tucker"] | None = None  # as in the library's car example, at rank 0.4
    norm: Literal["group_norm", "instance_norm"] | None = "group_norm"
    decoder: Literal["linear", "nonlinear"] = "linear"
    # One of the radii of pinchpoint's operator; the encoder has the largest.
    decoder_radius: Literal["smallest", "largest"] = "largest"
    weighting: Literal["half_cos"] | None = None  # for the mollified decoder
    # Of the position embedding: 2**5 half waves over the box, about the lattice's Nyquist limit.
    frequencies: int = 6
    layers: int = 4
    repeat: int = 2  # copies of the input function, each with its own kernel: the encoder's channels
    # Not part of GINO: the decoder's last network also reads this many features of the query.
    query_features: int = 0


@dataclass(frozen=True)
class GinoBody:
    """One body as an input of GINO, on its device. Lengths are in units of the box's longest side."""

    points: Tensor  # (1, P, 3)
    inputs: Tensor  # (1, P, C)
    # (1, *lattice, 1 + K): signed distance, position, and the features that are constant over a body.
    latent: Tensor
    query: Tensor | None  # (1, P, query_features)
    into_tokens: dict[str, Tensor]
    into_points: dict[str, Tensor]


class Gino(nn.Module):
    """GINO on a lattice. Call `prepare` once per sample, then call the model with the result."""

    gino: Any
    tokens: Tensor  # (L, 3), in units of the box

    def __init__(
        self,
        lattice: Lattice,
        *,
        radii: tuple[float, float],
        features: int,
        targets: int,
        channels: int,
        choices: Choices,
    ) -> None:
        """Build the model. radii: the smallest and the largest radius to choose from."""
        super().__init__()
        self.choices, self.lattice, self.channels = choices, lattice, channels
        self.in_radius, self.out_radius = radii[1], radii[choices.decoder_radius == "largest"]
        self.low = lattice.low
        self.unit = max(high - low for low, high in zip(lattice.low, lattice.high, strict=True))
        width = (5 + features) * choices.repeat
        self.gino = load_gino().GINO(
            in_channels=width,
            out_channels=targets,
            fno_in_channels=width,
            latent_feature_channels=1 + features,
            in_gno_radius=self.in_radius / self.unit,
            out_gno_radius=self.out_radius / self.unit,
            out_gno_transform_type=choices.decoder,
            gno_weighting_function=choices.weighting,
            in_gno_pos_embed_type="nerf",
            out_gno_pos_embed_type="nerf",
            gno_embed_channels=choices.frequencies,
            fno_n_modes=modes_of(lattice.shape, choices.modes),
            fno_hidden_channels=channels,
            fno_n_layers=choices.layers,
            fno_norm=choices.norm,
            fno_channel_mlp_expansion=1.0,
            fno_factorization=choices.factorization,
            fno_rank=0.4 if choices.factorization else 1.0,
            in_gno_channel_mlp_hidden_layers=[80, 80, 80],
            out_gno_channel_mlp_hidden_layers=[512, 256],
            gno_use_open3d=False,
            gno_use_torch_scatter=False,
        )
        self.gino.gno_in.neighbor_search = FixedNeighbours()
        self.gino.gno_out.neighbor_search = FixedNeighbours()
        if choices.query_features:
            old = self.gino.projection
            self.gino.projection = type(old)(
                in_channels=channels + choices.query_features,
                out_channels=targets,
                hidden_channels=old.hidden_channels,
                n_layers=2,
                n_dim=1,
            )
            self.gino.gno_out = Appending(self.gino.gno_out)
        self.register_buffer("tokens", self._units(lattice.points()), persistent=False)

    def prepare(self, sample: Sample, *, normals: Tensor, query: Tensor | None = None) -> GinoBody:
        """Return the inputs of `forward`, computed once per body.

        normals: (P, 3), of length 1; query: (P, query_features), if the model has any.
        """
        into_tokens, into_points = lattice_edges(sample.points, self.lattice, self.in_radius)
        if self.out_radius != self.in_radius:
            into_points = lattice_edges(sample.points, self.lattice, self.out_radius)[1]
        points, tokens = self._units(sample.points), self.tokens.to(sample.points.device)
        # pinchpoint's operator reads areas, so GINO may too; dividing by the mean removes the size of the
        # panels.
        areas = (sample.areas / sample.areas.mean())[:, None]
        inputs = torch.cat([torch.ones_like(areas), areas, points, sample.features], dim=1)
        signed = signed_distance(tokens, points, normals)
        # The onset flow and the clearance, which are constant over a body.
        rest = sample.features[:, 3:].mean(0).expand(len(tokens), -1)
        return GinoBody(
            points=points[None],
            inputs=inputs.repeat(1, self.choices.repeat)[None],
            latent=torch.cat([signed[:, None], tokens, rest], dim=1).reshape(1, *self.lattice.shape, -1),
            query=None if query is None else query[None],
            into_tokens=as_neighbours(into_tokens),
            into_points=as_neighbours(into_points)
            | ({"weights": squared_lengths(into_points, points, tokens)} if self.choices.weighting else {}),
        )

    def forward(self, body: GinoBody) -> Tensor:
        """(P, T)."""
        decoder = self.gino.gno_out
        if isinstance(decoder, Appending):
            assert body.query is not None, "the body was prepared without the query's features"
            decoder.features, decoder = body.query, decoder.block
        self.gino.gno_in.neighbor_search.neighbours = body.into_tokens
        decoder.neighbor_search.neighbours = body.into_points
        grid = self.tokens.reshape(1, *self.lattice.shape, 3)
        return self.gino(
            input_geom=body.points,
            latent_queries=grid,
            output_queries=body.points,
            x=body.inputs,
            latent_features=body.latent,
        )[0]

    def _units(self, points: Tensor) -> Tensor:
        # Use one scale for all axes, so that a ball stays a ball and both models have the same graph.
        return (points - points.new_tensor(self.low)) / self.unit


class FixedNeighbours(nn.Module):
    """A replacement of the neighbour search that returns the graph of the current body."""

    neighbours: dict[str, Tensor]

    def forward(self, data: Tensor, queries: Tensor, radius: float) -> dict[str, Tensor]:
        splits = self.neighbours["neighbors_row_splits"]
        assert len(splits) == len(queries) + 1, (
            f"the graph belongs to another body: {len(splits) - 1} rows for {len(queries)} queries"
        )
        return self.neighbours


class Appending(nn.Module):
    """A GNO block that appends the queries' features to its own channels."""

    features: Tensor
    block: Any

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, y: Tensor, x: Tensor, f_y: Tensor) -> Tensor:
        return torch.cat([self.block(y=y, x=x, f_y=f_y), self.features], dim=-1)


def gino_of_size(parameters: int, *, within: float = 0.05, **about: Any) -> Gino:
    """Return the GINO with the number of parameters closest to `parameters`.

    Raises `NoSuchSize` if none is close enough.
    """
    low, high = 4, 8
    while high < 4096 and parameter_count(Gino(channels=high, **about)) < parameters:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if parameter_count(Gino(channels=middle, **about)) < parameters else (low, middle)
        )
    nearest = (Gino(channels=channels, **about) for channels in (low, high))
    nearest_model = min(nearest, key=lambda model: abs(parameter_count(model) - parameters))
    off = parameter_count(nearest_model) / parameters - 1
    if abs(off) > within:
        raise NoSuchSize(
            f"The nearest GINO has {parameter_count(nearest_model):,} parameters, but pinchpoint's operator "
            f"has {parameters:,} ({off:+.1%}).",
            hint="Choose other modes or layers for GINO, or another width for pinchpoint's operator.",
        )
    return nearest_model


def parameter_count(model: nn.Module) -> int:
    """Return the number of trained real numbers; a complex number counts as two."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters() if p.requires_grad)


def modes_of(shape: tuple[int, ...], part: str) -> tuple[int, ...]:
    """Return the modes along each axis: an even number, at least 4 if the lattice has that many points."""
    return tuple(max(min(4, size), size // (4 if part == "quarter" else 2) // 2 * 2) for size in shape)


def as_neighbours(edges: Edges) -> dict[str, Tensor]:
    """Return the edges in neuralop's format."""
    return {"neighbors_index": edges.sources.long(), "neighbors_row_splits": edges.offsets}


def squared_lengths(edges: Edges, queries: Tensor, sources: Tensor) -> Tensor:
    """Return (E,), the inputs of GINO's weighting functions. queries: (Q, 3); sources: (S, 3)."""
    return (queries[edges.destinations().long()] - sources[edges.sources.long()]).square().sum(1)


def signed_distance(tokens: Tensor, points: Tensor, normals: Tensor) -> Tensor:
    """Return (L,), the distance to the nearest panel, negative inside the body. points, normals: (P, 3)."""
    parts = []
    for some in tokens.split(max(1, 100_000_000 // len(points))):
        nearest = torch.cdist(some, points, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        away = some - points[nearest]
        parts.append(away.norm(dim=1) * torch.sign((away * normals[nearest]).sum(1)))
    return torch.cat(parts)


def segment_csr(src: Tensor, indptr: Tensor, reduction: str, use_scatter: bool = False) -> Tensor:
    """Compute neuralop's function of this name without a loop.

    src: (1, E, C) or (E, C); indptr: (1, Q + 1) or (Q + 1,).
    """
    values, offsets = (src[0], indptr[0]) if src.dim() == 3 else (src, indptr)
    assert src.dim() == 2 or src.shape[0] == 1, "one body at a time"
    sums = torch.segment_reduce(values, "sum", offsets=offsets, axis=0, unsafe=True, initial=0)
    if reduction == "mean":
        sums = sums / offsets.diff().clamp_min(1)[:, None]
    return sums[None] if src.dim() == 3 else sums


@contextmanager
def reduce_by(which: Literal["vectorised", "loop"]) -> Iterator[None]:
    """Make GINO reduce with our function, or with its own loop, within this context."""
    load_gino()
    transform = importlib.import_module("neuralop.layers.integral_transform")
    own = importlib.import_module("neuralop.layers.segment_csr").segment_csr
    before, transform.segment_csr = transform.segment_csr, segment_csr if which == "vectorised" else own  # pyright: ignore
    try:
        yield
    finally:
        transform.segment_csr = before  # pyright: ignore


def load_gino(local_copy: Path = LOCAL_COPY) -> ModuleType:
    """Return the module neuralop.models.gino, from an installed neuralop or from a local copy."""
    if "neuralop.models.gino" in sys.modules:
        return sys.modules["neuralop.models.gino"]
    if local_copy.is_dir() and str(local_copy) not in sys.path:
        sys.path.append(str(local_copy))  # last: an installed package has priority
    spec = importlib.util.find_spec("neuralop") if "neuralop" not in sys.modules else None
    if spec is None or not spec.submodule_search_locations:
        raise Missing(
            "neuralop is neither installed nor in scratch/peer.",
            hint="Run the pip install --target command in benchmarks/operator/README.md.",
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    for name in _SKIPPED:
        bare = ModuleType(name)
        bare.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = bare
    return importlib.import_module("neuralop.models.gino")
