"""The probes of a whole grid of HfO2 in every form of the model and with a PaiNN, and writing a CHGCAR.

The clock runs from the atoms' features to densities in host memory and includes the neighbour search.
`original` also recomputes the atoms for each of its chunks, as in the ChargE3Net-style density report. `full`
and `original` use e3nn's couplings. `plain` is the scalar form with torch's own kernels, the only ones
available on a CPU. `plain` and `scalar` compute the whole grid. The others are timed on a few chunks spread
over the grid and scaled to all probes, since each probe takes them nearly the same time. The weights are
random, because neither time nor memory depends on them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
from pinchpoint.systems.common.bench.records import Agreement
from pinchpoint.systems.density.files.chgcar import read_chgcar, write_chgcar
from pinchpoint.systems.density.files.structures import to_ase
from pinchpoint.systems.density.files.volume import Volume
from pinchpoint.systems.density.grid.bricks import Surroundings, bricks_of, surroundings_of
from pinchpoint.systems.density.grid.grids import choose_grid
from pinchpoint.systems.density.grid.hafnia import hafnia
from pinchpoint.systems.density.grid.periodic_images import atom_graph
from pinchpoint.systems.density.grid.sweep import sweep
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.full_form import FullForm
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.model.painn import PaiNN

CHUNK: dict[Sizes, int] = {"tiny": 100, "small": 500, "report": 3_000}  # probes; the report has 3,000
CHUNKS: dict[Sizes, int] = {"tiny": 2, "small": 1, "report": 4}
WIDTH: dict[Sizes, int] = {"tiny": 10, "small": 100, "report": 500}
LMAX: dict[Sizes, int] = {"tiny": 1, "small": 4, "report": 4}
KNOTS = 4_096
TOLERANCE = 1e-5


def cases() -> tuple[BenchCase, ...]:
    return (
        BenchCase(
            "probes",
            "densities at the probes of a grid of HfO2",
            "The ChargE3Net-style density report takes 44 s for the 512,000 probes on a 24 GB card, 3,000 "
            "at a time; 5,000 run out of memory.",
            "probes",
            {"tiny": 8**3, "small": 12**3, "report": 80**3},
            build_probes,
        ),
        BenchCase(
            "chgcar",
            "writing a density as CHGCAR, on the host",
            "The density report writes a file of 9.1 MB and does not time it.",
            "points",
            {"tiny": 8**3, "small": 40**3, "report": 80**3},
            build_chgcar,
        ),
    )


def build_probes(setup: Setup) -> Contest:
    edge = round(setup.size ** (1 / 3))
    structure = hafnia()
    points = choose_grid(structure.lattice, grid=(edge, edge, edge))
    config = DensityConfig.preset("original", ("Hf", "O"), mul=WIDTH[setup.sizes], lmax=LMAX[setup.sizes])
    model = DensityModel(config, seed=setup.seed).to(setup.device).eval()
    graph = atom_graph(structure, config, device=setup.device)
    near = surroundings_of(
        structure, bricks_of(points, structure.lattice, config.cutoff_a), config.cutoff_a, device=setup.device
    )
    full = cache(lambda: FullForm(model, seed=setup.seed + 1).eval())
    runs: dict[str, WholeGrid | SomeChunks] = {}

    def some(name: str, form: Callable[[], FullForm | PaiNN], *, again: bool) -> Run:
        runs[name] = SomeChunks(form(), graph, near, CHUNKS[setup.sizes], CHUNK[setup.sizes], again=again)
        return runs[name]

    def whole(name: str, *, own_kernel: bool) -> Run:
        runs[name] = WholeGrid(model, graph, near, own_kernel=own_kernel)
        return runs[name]

    def painn() -> PaiNN:
        return PaiNN(config, seed=setup.seed).to(setup.device).eval()

    def check(name: str, _: Any) -> Agreement:
        difference = distance(runs[name], runs["original"])
        how = "densities at the probes that both computed"
        return Agreement(how, difference, difference <= TOLERANCE)

    def other(_: Any) -> Agreement:
        return Agreement("another model: not compared")

    share = SomeChunks.share_of(near, CHUNKS[setup.sizes], CHUNK[setup.sizes])
    contenders = [
        Contender(
            "original",
            lambda: some("original", full, again=True),
            "baseline",
            work=share,
            note="all couplings with e3nn, atoms recomputed per chunk",
        ),
        Contender(
            "full",
            lambda: some("full", full, again=False),
            work=share,
            check=partial(check, "full"),
            note="all couplings with e3nn, atoms computed once",
        ),
        Contender(
            "scalar",
            lambda: whole("scalar", own_kernel=True),
            check=partial(check, "scalar"),
            note="only the couplings that reach the density",
        ),
        Contender(
            "PaiNN",
            lambda: some("PaiNN", painn, again=False),
            "peer",
            work=share,
            check=other,
            note="the published equations of DeepDFT's PaiNN, width 128: another, smaller model",
        ),
    ]
    if setup.device == "cuda":
        plain = Contender(
            "plain",
            lambda: whole("plain", own_kernel=False),
            check=partial(check, "plain"),
            note="the scalar form with torch's own kernels",
        )
        contenders.insert(2, plain)
    with torch.no_grad():
        width = model.fields(graph).shape[1]
    pairs = pair_count(near)
    return Contest(
        contenders,
        {"grid": " x ".join(map(str, points)), "mul": WIDTH[setup.sizes], "lmax": LMAX[setup.sizes]},
        operations_floor(
            setup,
            2.0 * pairs * width,
            precision="fp32",
            what=f"products of the scalar form over {pairs:,} pairs of a probe and an atom",
        ),
        notes=(
            f"original, full and PaiNN are timed on {share:.1%} of the probes, in chunks of "
            f"{CHUNK[setup.sizes]:,}, and scaled up",
            "random weights; seconds from the atoms' features to densities in host memory",
        ),
        packages=("e3nn",),
    )


def pair_count(near: Surroundings) -> int:
    """Return the pairs of a probe and a neighbour slot of its brick that holds an atom."""
    counts = near.counts(torch.arange(near.bricks.count, device=near.offsets.device))
    return int(counts.sum()) * near.bricks.probes


def build_chgcar(setup: Setup) -> Contest:
    edge = round(setup.size ** (1 / 3))
    rng = np.random.default_rng(setup.seed)
    volume = Volume(hafnia(), rng.uniform(0.01, 8.0, (edge, edge, edge)), comment="HfO2")
    folder = tempfile.TemporaryDirectory()

    def path(name: str) -> Path:
        return Path(folder.name) / name

    def check(name: str, digits: float, _: Any) -> Agreement:
        read = read_chgcar(path(name)).total
        difference = float(np.abs(read / volume.total - 1).max())
        return Agreement("the file, read again", difference, difference <= digits)

    def ours() -> Run:
        return lambda: write_chgcar(path("pinchpoint"), volume)

    def plain() -> Run:
        write_chgcar(path("head"), volume)
        head = path("head").read_text(encoding="utf-8").split("\n\n")[0]
        return lambda: write_line_by_line(path("line by line"), head, volume)

    def ase() -> Run:
        density = imported("ase.calculators.vasp", "ase").VaspChargeDensity(None)
        density.atoms, density.chg = [to_ase(volume.structure)], [volume.total]
        return lambda: density.write(str(path("ASE")), format="chgcar")

    def pymatgen() -> Run:
        chgcar_class = imported("pymatgen.io.vasp.outputs", "pymatgen").Chgcar
        write_chgcar(path("source"), volume)
        chgcar = chgcar_class.from_file(str(path("source")))
        return lambda: chgcar.write_file(str(path("pymatgen")))

    def contender(name: str, make: Callable[[], Run], digits: float, **options: Any) -> Contender:
        return Contender(
            name, make, check=partial(check, name, digits), peak=lambda: None, warmup=1, **options
        )

    return Contest(
        (
            contender("line by line", plain, 1e-10, role="baseline", note="formatted in a Python loop"),
            contender("pinchpoint", ours, 1e-10),
            contender("ASE", ase, 1e-6, role="peer"),
            contender("pymatgen", pymatgen, 1e-6, role="peer"),
        ),
        {"grid": f"{edge} x {edge} x {edge}"},
        packages=("ase", "pymatgen"),
    )


def write_line_by_line(path: Path, head: str, volume: Volume) -> None:
    """Write a CHGCAR with one formatted line after another."""
    values = (volume.total * volume.structure.volume).ravel(order="F")
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{head}\n\n{' '.join(map(str, volume.grid))}\n")
        for start in range(0, len(values), 5):
            file.write(" ".join(f"{value:18.11E}" for value in values[start : start + 5]) + "\n")


class WholeGrid:
    """A run of the scalar form over the whole grid."""

    def __init__(
        self, model: DensityModel, graph: AtomGraph, near: Surroundings, *, own_kernel: bool
    ) -> None:
        self.form = model.tabulate(KNOTS, own_kernel=own_kernel, radius_a=near.radius_a)
        self.graph, self.near = graph, near
        with torch.no_grad():
            self.fields = model.fields(graph)
        self.numbers = np.arange(near.bricks.count)
        self.chunk, self.pairs = 0, 0
        self.values = np.empty(0)

    def __call__(self) -> None:
        outputs = self.form.config.outputs
        result = sweep(
            self.form,
            lambda: self.fields,
            self.graph.species,
            self.near,
            outputs=outputs,
            heavy=self.form.heavy(self.fields),
            probe_bytes=self.form.probe_bytes,
        )
        self.values, self.chunk, self.pairs = result.values, result.chunk, result.pairs


class SomeChunks:
    """A run of a form over a few chunks. again: whether to recompute the atoms for each chunk."""

    def __init__(
        self,
        form: FullForm | PaiNN,
        graph: AtomGraph,
        near: Surroundings,
        chunks: int,
        chunk: int,
        *,
        again: bool,
    ) -> None:
        self.form, self.graph, self.near, self.again = form, graph, near, again
        with torch.no_grad():
            self.fields = form.fields(graph)
        each = min(-(-chunk // near.bricks.probes), near.bricks.count)
        count = min(chunks, near.bricks.count // each)
        starts = np.linspace(0, near.bricks.count - each, count).astype(np.int64)
        self.parts = [
            torch.arange(start, start + each, device=graph.species.device) for start in starts.tolist()
        ]
        self.numbers = np.concatenate([np.arange(start, start + each) for start in starts.tolist()])
        self.chunk, self.pairs = each * near.bricks.probes, 0
        self.slots = int(near.counts(torch.arange(near.bricks.count, device=graph.species.device)).max())
        self.values = np.empty(0)

    @staticmethod
    def share_of(near: Surroundings, chunks: int, chunk: int) -> float:
        """Return the share of the grid that this many chunks cover."""
        each = min(-(-chunk // near.bricks.probes), near.bricks.count)
        return each * min(chunks, near.bricks.count // each) / near.bricks.count

    @torch.no_grad()
    def __call__(self) -> None:
        values = []
        for numbers in self.parts:
            fields = self.form.fields(self.graph) if self.again else self.fields
            neighbours, vectors = self.near.neighbours(numbers, self.slots)
            values.append(self.form(fields, self.graph.species, neighbours, vectors).cpu().numpy())
        self.values = np.concatenate(values)


def distance(run: WholeGrid | SomeChunks, reference: WholeGrid | SomeChunks) -> float:
    """Return the relative L2 distance between two runs, at the probes of the reference."""
    here = np.searchsorted(run.numbers, reference.numbers)
    expected, values = reference.values.astype(np.float64), run.values[here].astype(np.float64)
    return float(np.linalg.norm(values - expected) / np.linalg.norm(expected))
