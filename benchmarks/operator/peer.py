"""neuralop's GINO, ready to be trained beside ours: loaded alone, its neighbours given, its reduce vectorised.

Nothing of neuralop is copied or changed on disk. Three things are replaced at run time, each for speed alone:
its package's `__init__` (which imports loggers and data readers GINO does not use) is not run, the neighbour
search is answered with the graph of the body (the same one ours reads), and the reduce over edges, a loop over
rows in Python where torch-scatter is missing, is done by one call of torch.

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

CARRIED = Path(__file__).parents[2] / "scratch" / "peer"
_SKIPPED = ("neuralop", "neuralop.models")  # packages whose __init__ is not run


class NoSuchSize(BadInput):
    """No GINO of a shape has about as many parameters as ours."""


@dataclass(frozen=True)
class Choices:
    """What is chosen about GINO; the number of its channels follows from the parameters it may have."""

    modes: Literal["quarter", "half"] = (
        "quarter"  # Fourier modes along an axis, as a part of the lattice's points
    )
    factorization: Literal["tucker"] | None = None  # as the library's car example has it, at rank 0.4
    norm: Literal["group_norm", "instance_norm"] | None = "group_norm"
    decoder: Literal["linear", "nonlinear"] = "linear"
    decoder_radius: Literal["smallest", "largest"] = (
        "largest"  # of the radii ours has; the encoder has the largest
    )
    weighting: Literal["half_cos"] | None = None  # the mollified form of the decoder
    frequencies: int = (
        6  # of the positions' embedding: 2**5 half waves over the box, about the lattice's Nyquist limit
    )
    layers: int = 4
    repeat: int = 2  # copies of the input function, each with a kernel of its own: the encoder's channels
    query_features: int = (
        0  # not GINO's own: the decoder's last network also reads as many features of the query
    )


@dataclass(frozen=True)
class GinoBody:
    """One body as GINO reads it, on its device. All lengths in units of the box's longest side."""

    points: Tensor  # (1, P, 3)
    inputs: Tensor  # (1, P, C)
    latent: (
        Tensor  # (1, *lattice, 1 + K): signed distance, position, and the features that are the same all over
    )
    query: Tensor | None  # (1, P, query_features)
    into_tokens: dict[str, Tensor]
    into_points: dict[str, Tensor]


class Gino(nn.Module):
    """GINO over a lattice: `prepare` a sample once, then call it with what that gave."""

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
        """radii: the smallest and the largest there are to choose from."""
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
        self.gino.gno_in.neighbor_search = Given()
        self.gino.gno_out.neighbor_search = Given()
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
        """What the forward needs beside the parameters, made once for a body.

        normals: (P, 3), of length 1; query: (P, query_features), where it was built for some.
        """
        into_tokens, into_points = lattice_edges(sample.points, self.lattice, self.in_radius)
        if self.out_radius != self.in_radius:
            into_points = lattice_edges(sample.points, self.lattice, self.out_radius)[1]
        points, tokens = self._units(sample.points), self.tokens.to(sample.points.device)
        areas = (sample.areas / sample.areas.mean())[
            :, None
        ]  # ours reads areas, so GINO may; the mean does not tell the mesh
        inputs = torch.cat([torch.ones_like(areas), areas, points, sample.features], dim=1)
        signed = signed_distance(tokens, points, normals)
        rest = (
            sample.features[:, 3:].mean(0).expand(len(tokens), -1)
        )  # the onset and its like: the same all over a body
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
            assert body.query is not None, "a body prepared without the query's features"
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
        # One scale for all axes: a ball stays a ball, so the graph is the one ours has.
        return (points - points.new_tensor(self.low)) / self.unit


class Given(nn.Module):
    """Stands where the neighbour search was and answers with the graph of the body at hand."""

    neighbours: dict[str, Tensor]

    def forward(self, data: Tensor, queries: Tensor, radius: float) -> dict[str, Tensor]:
        splits = self.neighbours["neighbors_row_splits"]
        assert len(splits) == len(queries) + 1, (
            f"the graph of another body: {len(splits) - 1} rows for {len(queries)} queries"
        )
        return self.neighbours


class Appending(nn.Module):
    """A GNO block whose output carries the queries' features behind its own channels."""

    features: Tensor
    block: Any

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, y: Tensor, x: Tensor, f_y: Tensor) -> Tensor:
        return torch.cat([self.block(y=y, x=x, f_y=f_y), self.features], dim=-1)


def gino_of_size(parameters: int, *, within: float = 0.05, **about: Any) -> Gino:
    """The GINO whose count of parameters is nearest to the one asked for; refused where none is near enough."""
    low, high = 4, 8
    while high < 4096 and parameter_count(Gino(channels=high, **about)) < parameters:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if parameter_count(Gino(channels=middle, **about)) < parameters else (low, middle)
        )
    nearest = (Gino(channels=channels, **about) for channels in (low, high))
    found = min(nearest, key=lambda model: abs(parameter_count(model) - parameters))
    off = parameter_count(found) / parameters - 1
    if abs(off) > within:
        raise NoSuchSize(
            f"the nearest GINO has {parameter_count(found):,} parameters where ours has {parameters:,} ({off:+.1%})",
            hint="choose other modes or layers for GINO, or another width of ours",
        )
    return found


def parameter_count(model: nn.Module) -> int:
    """Real numbers that are trained; a complex one is two."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters() if p.requires_grad)


def modes_of(shape: tuple[int, ...], part: str) -> tuple[int, ...]:
    """Even, and at least 4 where the lattice has as many points."""
    return tuple(max(min(4, size), size // (4 if part == "quarter" else 2) // 2 * 2) for size in shape)


def as_neighbours(edges: Edges) -> dict[str, Tensor]:
    """Edges in neuralop's words."""
    return {"neighbors_index": edges.sources.long(), "neighbors_row_splits": edges.offsets}


def squared_lengths(edges: Edges, queries: Tensor, sources: Tensor) -> Tensor:
    """(E,): what GINO's weighting functions read. queries: (Q, 3), sources: (S, 3)."""
    return (queries[edges.destinations().long()] - sources[edges.sources.long()]).square().sum(1)


def signed_distance(tokens: Tensor, points: Tensor, normals: Tensor) -> Tensor:
    """(L,): how far the nearest panel is, negative inside the body. points, normals: (P, 3)."""
    parts = []
    for some in tokens.split(max(1, 100_000_000 // len(points))):
        nearest = torch.cdist(some, points, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        away = some - points[nearest]
        parts.append(away.norm(dim=1) * torch.sign((away * normals[nearest]).sum(1)))
    return torch.cat(parts)


def segment_csr(src: Tensor, indptr: Tensor, reduction: str, use_scatter: bool = False) -> Tensor:
    """What neuralop's function of this name gives, without a loop. src: (1, E, C) or (E, C); indptr: (1, Q + 1) or (Q + 1,)."""
    values, offsets = (src[0], indptr[0]) if src.dim() == 3 else (src, indptr)
    assert src.dim() == 2 or src.shape[0] == 1, "one body at a time"
    summed = torch.segment_reduce(values, "sum", offsets=offsets, axis=0, unsafe=True, initial=0)
    if reduction == "mean":
        summed = summed / offsets.diff().clamp_min(1)[:, None]
    return summed[None] if src.dim() == 3 else summed


@contextmanager
def reduce_by(how: Literal["vectorised", "loop"]) -> Iterator[None]:
    """Inside, GINO reduces by our function, or by its own loop."""
    load_gino()
    transform = importlib.import_module("neuralop.layers.integral_transform")
    own = importlib.import_module("neuralop.layers.segment_csr").segment_csr
    before, transform.segment_csr = transform.segment_csr, segment_csr if how == "vectorised" else own  # pyright: ignore
    try:
        yield
    finally:
        transform.segment_csr = before  # pyright: ignore


def load_gino(carried: Path = CARRIED) -> ModuleType:
    """The module neuralop.models.gino, from an installed neuralop or from the carried folder."""
    if "neuralop.models.gino" in sys.modules:
        return sys.modules["neuralop.models.gino"]
    if carried.is_dir() and str(carried) not in sys.path:
        sys.path.append(str(carried))  # last: what is installed comes first
    found = importlib.util.find_spec("neuralop") if "neuralop" not in sys.modules else None
    if found is None or not found.submodule_search_locations:
        raise Missing(
            "neuralop is neither installed nor carried",
            hint="see benchmarks/operator/README.md: pip install --target",
        )
    root = Path(next(iter(found.submodule_search_locations)))
    for name in _SKIPPED:
        bare = ModuleType(name)
        bare.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = bare
    return importlib.import_module("neuralop.models.gino")
