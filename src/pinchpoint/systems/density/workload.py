"""The density workload: `size` probes of HfO2 through one of the three forms, a chunk at a time.

Letters: P probes, N bricks of B = 64 probes, K slots. The probes are those of an 80 x 80 x 80 grid, brick by
brick, starting over where more are requested, so that a probe costs the same at any size. The neighbours of
the grid's 8,000 bricks are listed once, on the host. Training fits a constant by least squares with Adam and
sums the gradients of the chunks; inference returns the densities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Case, Probe
from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.systems.density import CHUNK, FULL_CHUNK
from pinchpoint.systems.density.grid.bricks import Bricks, radius_a
from pinchpoint.systems.density.grid.hafnia import hafnia
from pinchpoint.systems.density.grid.periodic_images import atom_graph, images_of
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.full_form import FullForm
from pinchpoint.systems.density.model.model import DensityModel, TabulatedModel

GRID = (80, 80, 80)
BRICK = (4, 4, 4)
SLOTS = 32  # no brick of this grid has more neighbours
KNOTS = 8_192  # of the radial table: accurate to 1e-6
GOAL = 0.1  # e / angstrom^3, the constant that training fits
TRACED_CHUNKS = {"original": 1, "full": 1, "scalar": 32}  # whole chunks run when the peak is predicted


@dataclass(frozen=True)
class Piece:
    """Bricks first .. first + count, the first `probes` probes of each; densities go to `start` of the
    result.
    """

    first: int
    count: int
    probes: int
    start: int


@dataclass(frozen=True)
class Near:
    """The neighbours of every brick. An unused slot lies beyond the cutoff."""

    atoms: Tensor  # (N, K) int64
    apart: Tensor  # (N, K, 3) from the brick's centre to the atom (its image)
    offsets: Tensor  # (B, 3) from the centre to the probes


@dataclass(frozen=True)
class Job:
    """A form of the model with its structure and the pieces to compute."""

    form: DensityModel | TabulatedModel | FullForm
    model: DensityModel
    graph: AtomGraph
    near: Near
    pieces: list[Piece]
    size: int  # probes in all
    once: bool  # compute the atoms once, not for every chunk

    def fields(self) -> Tensor:
        return self.form.fields(self.graph)

    def densities(self, piece: Piece, fields: Tensor) -> Tensor:
        """Return the densities of a piece, (probes, outputs)."""
        bricks = torch.arange(piece.first, piece.first + piece.count, device=fields.device) % len(
            self.near.atoms
        )
        vectors = self.near.offsets[: piece.probes, None] - self.near.apart[bricks][:, None]
        return self.form(fields, self.graph.species, self.near.atoms[bricks], vectors).flatten(0, 1)


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
    """Build one case. A chunk is a number of probes, rounded up to whole bricks."""
    if size < 1 or (chunk is not None and chunk < 1):
        raise BadInput(
            f"A workload of {size} probes in chunks of {chunk} is not possible.",
            hint="Give a size of at least 1 probe, and a chunk of at least 1.",
        )
    config = DensityConfig.preset(
        "original", ("Hf", "O"), mul=int(settings["mul"]), lmax=int(settings["lmax"])
    )
    model = DensityModel(config, seed=seed).to(device)
    structure, bricks = hafnia(), Bricks(GRID, BRICK)
    if variant != "scalar":
        form = FullForm(model, seed=seed + 1)
    elif mode == "train":
        form = model
    else:
        form = model.tabulate(KNOTS, radius_a=radius_a(bricks, structure.lattice))
    pieces = list(_pieces(size, bricks.probes, chunk or (CHUNK if variant == "scalar" else FULL_CHUNK)))
    graph = atom_graph(structure, config, device=device)
    atoms, apart, offsets = near_bricks(structure, bricks, config.cutoff_a)
    near = Near(*(torch.from_numpy(array).to(device) for array in (atoms, apart, offsets)))
    if is_fake(model.probes.readout):
        pairs = None if variant == "scalar" else _pairs(apart, offsets, config.cutoff_a)
        pieces = _traced(pieces, TRACED_CHUNKS[variant], pairs)
    job = Job(form, model, graph, near, pieces, size, once=variant != "original")
    return Case(
        step=_train(job) if mode == "train" else torch.no_grad()(lambda: _infer(job)),
        processed=job.size,
        probe=lambda: _probe(job, gradients=mode == "train"),
    )


def near_bricks(structure: Structure, bricks: Bricks, cutoff_a: float) -> tuple[np.ndarray, ...]:
    """Find all images within the cutoff of the sphere around each brick; return the arrays of `Near`."""
    steps = structure.lattice / np.array(bricks.grid)[:, None]
    sides = np.array(bricks.sides)
    inside = np.stack(np.meshgrid(*map(np.arange, bricks.sides), indexing="ij"), axis=-1).reshape(-1, 3)
    offsets = (inside - (sides - 1) / 2) @ steps
    centres = (np.indices(bricks.along).reshape(3, -1).T * sides + (sides - 1) / 2) @ steps
    reach = cutoff_a + np.linalg.norm(offsets, axis=1).max()
    images = images_of(structure, reach)
    apart = images.positions[None] - centres[:, None]
    square = (apart**2).sum(axis=2)
    nearest = np.argsort(square, axis=1)[:, :SLOTS]
    assert (np.partition(square, SLOTS, axis=1)[:, SLOTS] >= reach**2).all(), (
        "a brick has more neighbours than slots"
    )
    rows = np.arange(len(centres))[:, None]
    vectors = np.where((square[rows, nearest] < reach**2)[..., None], apart[rows, nearest], 2 * reach)
    return images.atom[nearest], vectors.astype(np.float32), offsets.astype(np.float32)


def _pieces(size: int, brick: int, chunk: int) -> Iterator[Piece]:
    """Yield whole bricks first, a chunk at a time, then the rest of the last brick by itself."""
    whole, rest = divmod(size, brick)
    step = -(-chunk // brick)
    for first in range(0, whole, step):
        yield Piece(first, min(step, whole - first), brick, first * brick)
    if rest:
        yield Piece(whole, 1, rest, whole * brick)


def _traced(pieces: list[Piece], whole: int, pairs: np.ndarray | None) -> list[Piece]:
    """Return chunks that represent all of them: the first whole ones, the largest, and the last two.

    pairs: of every brick. None: whole chunks are alike. A later chunk also holds gradients of the first.
    """
    if len(pieces) <= whole + 2:
        return pieces
    largest = [] if pairs is None else [max(pieces[whole:-2], key=lambda piece: _pairs_of(piece, pairs))]
    return [*pieces[:whole], *largest, *pieces[-2:]]


def _pairs(apart: np.ndarray, offsets: np.ndarray, cutoff_a: float) -> np.ndarray:
    """The numbers of probes and atoms of every brick that are closer than the cutoff."""
    return np.array([(np.square(offsets[:, None] - brick).sum(-1) < cutoff_a**2).sum() for brick in apart])


def _pairs_of(piece: Piece, pairs: np.ndarray) -> int:
    return int(pairs[np.arange(piece.first, piece.first + piece.count) % len(pairs)].sum())


def _infer(job: Job) -> Tensor:
    fields = job.fields()
    out = fields.new_empty(job.size, job.model.config.outputs)
    for at, piece in enumerate(job.pieces):
        if at and not job.once:
            fields = job.fields()
        out[piece.start : piece.start + piece.count * piece.probes] = job.densities(piece, fields)
    return out


def _losses(job: Job, loss_of: Callable[[Tensor], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield densities and loss of each chunk after its backward pass.

    Where the atoms are computed once, their own backward pass comes last.
    """
    fields = job.fields() if job.once else None
    leaf = None if fields is None else fields.detach().requires_grad_()
    for piece in job.pieces:
        values = job.densities(piece, job.fields() if leaf is None else leaf)
        # Divided by all probes, not the chunk's: the chunks then add up to the mean, even with a smaller last
        # chunk.
        loss = loss_of(values) / job.size
        loss.backward()
        yield values.detach(), loss.detach()
    if fields is not None and leaf is not None:
        fields.backward(leaf.grad)


def _train(job: Job) -> Callable[[], Tensor]:
    optimizer = torch.optim.Adam(job.model.parameters(), lr=1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), device=job.graph.species.device)
        for _, loss in _losses(job, lambda values: (values - GOAL).square().sum()):
            total += loss
        optimizer.step()
        return total

    return step


def _probe(job: Job, *, gradients: bool) -> Probe:
    """Return the densities, and in training the loss and the gradient of every weight."""
    if not gradients:
        with torch.no_grad():
            return Probe(outputs={"densities": _array(_infer(job))})
    job.model.zero_grad()
    # Odd in the values, unlike the training loss, so that a wrong sign is detected.
    chunks = list(_losses(job, lambda values: (values + 0.25 * values.square()).sum()))
    return Probe(
        outputs={
            "densities": _array(torch.cat([values for values, _ in chunks])),
            "loss": _array(sum(loss for _, loss in chunks)),
        },
        gradients={
            name: None if p.grad is None else _array(p.grad) for name, p in job.model.named_parameters()
        },
    )


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy().copy()
