"""Comparison of reading and writing a CHGCAR with ASE and pymatgen, on one core of this machine.

    OMP_NUM_THREADS=1 python benchmarks/density/chgcar.py [-o record.json] [--grid 80] [--repeats 15]

All programs read the same file, in VASP's own format, and write the same density (12 atoms, HfO2's cell).
They run in alternation, each round in another order. Times are CPU seconds of the process, from a path to
the density in memory and back; wall seconds are recorded beside them. ASE and pymatgen take part if they
are installed. The script prints a table and writes a JSON record.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.studies.timing import ratio_interval, timing_of
from pinchpoint.systems.density.files.chgcar import read_chgcar, write_chgcar
from pinchpoint.systems.density.files.structures import to_ase
from pinchpoint.systems.density.files.volume import Volume, grid_points
from pinchpoint.systems.density.grid.structure import Structure

RESULT = Path(__file__).parents[1] / "results" / "chgcar_cpu.json"
PEERS = ("ase", "pymatgen")


def hafnia(points: int) -> Volume:
    """Return a density of 12 atoms in the cell of monoclinic HfO2, with a Gaussian at each atom.

    The density has 96 electrons, and all values are positive.
    """
    beta = np.radians(99.18)
    lattice = np.array([[5.1156, 0, 0], [0, 5.1722, 0], [5.2948 * np.cos(beta), 0, 5.2948 * np.sin(beta)]])
    first = np.array([[0.2759, 0.0404, 0.2081], [0.0742, 0.3313, 0.3447], [0.4496, 0.7573, 0.4798]])
    x, y, z = first.T
    images = [
        first,
        -first,
        np.stack([-x, y + 0.5, 0.5 - z], axis=1),
        np.stack([x, 0.5 - y, z + 0.5], axis=1),
    ]
    positions = np.stack(images, axis=1).reshape(-1, 3) % 1
    structure = Structure(lattice, ("Hf",) * 4 + ("O",) * 8, positions)
    grid = grid_points((points, points, points))
    density = np.zeros(len(grid))
    for position in positions:
        gap = grid - position
        density += np.exp(-4 * (((gap - np.round(gap)) @ lattice) ** 2).sum(axis=1)) + 1e-4
    density *= 96 / (density.mean() * structure.volume)
    return Volume(structure, density.reshape(points, points, points), comment="HfO2")


def programs(
    volume: Volume, source: Path, folder: Path
) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    """Return readers and writers by program: ours, and those of the installed peers."""
    reads: dict[str, Callable[[], Any]] = {"pinchpoint": lambda: read_chgcar(source)}
    writes: dict[str, Callable[[], Any]] = {"pinchpoint": lambda: write_chgcar(folder / "ours", volume)}
    if _version("ase"):
        from ase.calculators.vasp import VaspChargeDensity

        density = VaspChargeDensity(None)
        density.atoms, density.chg = [to_ase(volume.structure)], [volume.total]
        reads["ase"] = lambda: VaspChargeDensity(str(source))
        writes["ase"] = lambda: density.write(str(folder / "ase"), format="chgcar")
    if _version("pymatgen"):
        from pymatgen.io.vasp.outputs import Chgcar

        chgcar = Chgcar.from_file(str(source))
        reads["pymatgen"] = lambda: Chgcar.from_file(str(source))
        writes["pymatgen"] = lambda: chgcar.write_file(str(folder / "pymatgen"))
    return reads, writes


def alternate(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, list[float]]]:
    """Return CPU and wall seconds of each call, after one untimed call of each."""
    for run in runs.values():
        run()
    times: dict[str, dict[str, list[float]]] = {name: {"cpu": [], "wall": []} for name in runs}
    names = list(runs)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            cpu, wall = time.process_time(), time.perf_counter()
            runs[name]()
            times[name]["cpu"].append(time.process_time() - cpu)
            times[name]["wall"].append(time.perf_counter() - wall)
    return times


def rows(verb: str, times: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    results = []
    ours = times["pinchpoint"]["cpu"]
    for name, seconds in times.items():
        timing = timing_of(seconds["cpu"])
        ratio, low, high = ratio_interval(ours, seconds["cpu"])
        results.append(
            {
                "verb": verb,
                "program": name,
                "cpu_s": timing.median_s,
                "low_s": timing.low_s,
                "high_s": timing.high_s,
                "wall_s": timing_of(seconds["wall"]).median_s,
                "best_cpu_s": min(seconds["cpu"]),
                "runs": timing.runs,
                "ours_over_it": ratio,
                "ratio_low": low,
                "ratio_high": high,
            }
        )
    return results


def table(results: list[dict[str, Any]]) -> str:
    lines = [f"{'':6} {'':11} {'CPU, ms':>24}  {'ours / program':>20}"]
    for row in results:
        cpu = f"{row['cpu_s'] * 1e3:.1f} [{row['low_s'] * 1e3:.1f}, {row['high_s'] * 1e3:.1f}]"
        ratio = f"{row['ours_over_it']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]"
        lines.append(f"{row['verb']:6} {row['program']:11} {cpu:>24}  {ratio:>20}")
    return "\n".join(lines)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=RESULT, help="File of the record.")
    parser.add_argument("--grid", type=int, default=80, help="Grid points along each axis.")
    parser.add_argument("--repeats", type=int, default=15, help="Timed calls of each program.")
    args = parser.parse_args()
    check_output(args.output)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "CHGCAR"
        volume = hafnia(args.grid)
        write_chgcar(source, volume)
        reads, writes = programs(volume, source, Path(folder))
        results = rows("read", alternate(reads, args.repeats)) + rows(
            "write", alternate(writes, args.repeats)
        )
        size = source.stat().st_size
    record = {
        "command": f"OMP_NUM_THREADS=1 python benchmarks/density/chgcar.py --grid {args.grid}"
        f" --repeats {args.repeats}",
        "created": now(),
        "machine": describe() | {name: _version(name) for name in PEERS},
        # Other work on the machine slows all programs, and most those with more memory traffic.
        "load_before": before,
        "grid": [args.grid] * 3,
        "file_bytes": size,
        "rows": results,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
