"""Voxel sampling of pinchpoint, Open3D, PDAL and NumPy on one core, and the memory of `cloud sample`.

    OMP_NUM_THREADS=1 python benchmarks/cloud/voxel_sampling.py -o record.json [--points 500000] [--repeats 9]

Two jobs: `cells` groups coordinates in memory and keeps one point of every cell; `file` reads a binary PLY
file, keeps one point per cell, and writes it. Open3D's `voxel_down_sample` averages the points of a cell, in
cells shifted by half an edge, and keeps colours; NumPy's `unique` keeps the first point of a cell. pinchpoint
draws a point at random and keeps every column. PDAL's `filters.voxeldownsize` keeps the first point of a cell
and `filters.voxelcenternearestneighbor` the one nearest to its centre. They run in a process of `pdal
translate`, which takes `pdal_start_s` to start; for the job `cells`, the time to read the file is subtracted.
Each peer runs alternately with pinchpoint. Times are CPU seconds of the process and its children, so that
other programs on the machine hardly change them. The memory is the peak of a process that samples a LAZ file,
in one piece and with --budget; it includes the pages of temporary files that are mapped at that moment.
Needs `pip install open3d` and the program of `--pdal` (rows without them are left out).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.studies.timing import interleave, ratio_interval, timing_of
from pinchpoint.systems.cloud.sample_file import draw, sample_file

CELL = 0.05
SIZES = 500_000, 4_000_000  # points of the LAZ files
BUDGET = "64MiB"
# The peak that getrusage reports starts with the memory of the parent; VmHWM is that of the process itself.
_CHILD = """import re, sys
from pinchpoint.systems.cloud.sample_file import sample_file
record = sample_file(sys.argv[1], sys.argv[2], ratio=0.5, cell=0.2, budget=sys.argv[3] or None)
status = open("/proc/self/status", encoding="ascii").read()
print(record.passes, record.kept, 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]))
"""


def make_cloud(points: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return coordinates (N, 3) float64 on a wavy ground and some walls, and colours (N, 3) uint8.

    There are about ten points per cell.
    """
    rng = np.random.default_rng(seed)
    side = CELL * np.sqrt(points / 10)
    x, y = rng.uniform(0, side, (2, points))
    z = np.where(np.arange(points) % 4 == 0, rng.uniform(0, 3, points), 0.3 * np.sin(x) * np.cos(y))
    x = np.where(np.arange(points) % 4 == 0, np.round(x), x)
    return np.stack([x, y, z], axis=1), rng.integers(0, 256, (points, 3)).astype(np.uint8)


def write_file(path: Path, xyz: np.ndarray, colours: np.ndarray) -> Path:
    vertices = np.empty(
        len(xyz), [*((a, "<f8") for a in "xyz"), *((c, "u1") for c in ("red", "green", "blue"))]
    )
    for place, axis in enumerate("xyz"):
        vertices[axis] = xyz[:, place]
    for place, name in enumerate(("red", "green", "blue")):
        vertices[name] = colours[:, place]
    head = "".join(f"property double {axis}\n" for axis in "xyz")
    head += "".join(f"property uchar {name}\n" for name in ("red", "green", "blue"))
    text = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(xyz)}\n{head}end_header\n"
    path.write_bytes(text.encode() + vertices.tobytes())
    return path


def numpy_cells(xyz: np.ndarray) -> np.ndarray:
    """Return the index of the first point of every cell."""
    corner = np.floor(xyz / CELL).astype(np.int64)
    corner -= corner.min(axis=0)
    spans = corner.max(axis=0) + 1
    ids = (corner[:, 0] * spans[1] + corner[:, 1]) * spans[2] + corner[:, 2]
    return np.sort(np.unique(ids, return_index=True)[1])


def open3d_cells(xyz: np.ndarray) -> Any:
    import open3d as o3d  # pyright: ignore[reportMissingImports]

    cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(xyz))
    return cloud.voxel_down_sample(CELL)


def open3d_file(source: Path, output: Path) -> None:
    import open3d as o3d  # pyright: ignore[reportMissingImports]

    o3d.io.write_point_cloud(str(output), o3d.io.read_point_cloud(str(source)).voxel_down_sample(CELL))


def numpy_file(source: Path, output: Path) -> None:
    data = source.read_bytes()
    head, _, body = data.partition(b"end_header\n")
    names = [*((a, "<f8") for a in "xyz"), *((c, "u1") for c in ("red", "green", "blue"))]
    vertices = np.frombuffer(body, names)
    kept = vertices[numpy_cells(np.stack([vertices[axis] for axis in "xyz"], axis=1))]
    count = f"element vertex {len(vertices)}".encode()
    head = head.replace(count, f"element vertex {len(kept)}".encode())
    output.write_bytes(head + b"end_header\n" + kept.tobytes())


FILTERS = {  # PDAL's, with their options
    "voxeldownsize": (f"--filters.voxeldownsize.cell={CELL}", "--filters.voxeldownsize.mode=first"),
    "voxelcenternearestneighbor": (f"--filters.voxelcenternearestneighbor.cell={CELL}",),
}


def pdal_run(program: Path, source: Path, output: Path | None, stage: str | None) -> None:
    """Read a PLY file, apply the filter `stage` if there is one, and write the rest if `output` is given."""
    filters = [] if stage is None else [stage, *FILTERS[stage]]
    writer = ["-w", "writers.null"] if output is None else ["--writers.ply.storage_mode=little endian"]
    subprocess.run([program, "translate", source, output or "none", *filters, *writer], check=True)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def compare(
    job: str, peer: str, ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int
) -> dict[str, Any]:
    times = interleave(ours, theirs, wait=lambda result: None, warmup=1, repeats=repeats, clock=cpu_seconds)
    return _row(job, peer, *times)


def _row(job: str, peer: str, own_s: list[float], peer_s: list[float]) -> dict[str, Any]:
    times, repeats = (own_s, peer_s), len(own_s)
    low, middle, high = sorted(ratio_interval(times[1], times[0]))
    return {
        "job": job,
        "peer": peer,
        "pinchpoint_s": timing_of(times[0]).median_s,
        "peer_s": timing_of(times[1]).median_s,
        "speedup": middle,
        "speedup_low": low,
        "speedup_high": high,
        "repeats": repeats,
    }


def compare_all(points: int, repeats: int, folder: Path, *, peers: list[str]) -> list[dict[str, Any]]:
    xyz, colours = make_cloud(points)
    source = write_file(folder / "cloud.ply", xyz, colours)
    in_memory = {"numpy": lambda: numpy_cells(xyz), "open3d": lambda: open3d_cells(xyz)}
    with_files = {
        "numpy": lambda: numpy_file(source, folder / "numpy.ply"),
        "open3d": lambda: open3d_file(source, folder / "open3d.ply"),
    }
    rows = []
    for peer in peers:
        for job, ours, theirs in (
            ("cells", lambda: draw(xyz, None, cell=CELL, seed=0), in_memory[peer]),
            (
                "file",
                lambda: sample_file(source, folder / "ours.ply", one_per_cell=True, cell=CELL),
                with_files[peer],
            ),
        ):
            rows.append({"points": points} | compare(job, peer, ours, theirs, repeats))
    return rows


def compare_pdal(program: Path, points: int, repeats: int, folder: Path) -> list[dict[str, Any]]:
    """Return rows of PDAL's voxel filters, and the time in which its program starts."""
    xyz, colours = make_cloud(points)
    source, output = write_file(folder / "cloud.ply", xyz, colours), folder / "pdal.ply"
    alternate = partial(interleave, wait=lambda result: None, warmup=1, repeats=repeats, clock=cpu_seconds)
    version = [program, "--version"]
    _, starts_s = alternate(lambda: None, lambda: subprocess.run(version, check=True, capture_output=True))
    rows = []
    for stage in FILTERS:
        peer = f"pdal {stage}"
        own_s, file_s = alternate(
            lambda: sample_file(source, folder / "ours.ply", one_per_cell=True, cell=CELL),
            partial(pdal_run, program, source, output, stage),
        )
        read_s, both_s = alternate(
            partial(pdal_run, program, source, None, None), partial(pdal_run, program, source, None, stage)
        )
        draw_s, _ = alternate(lambda: draw(xyz, None, cell=CELL, seed=0), lambda: None)
        filter_s = [both - read for both, read in zip(both_s, read_s, strict=True)]
        start = {"pdal_start_s": timing_of(starts_s).median_s}
        rows += [
            {"points": points} | _row("cells", peer, draw_s, filter_s),
            {"points": points} | _row("file", peer, own_s, file_s) | start,
        ]
    return rows


def measure_memory(points: int, folder: Path) -> dict[str, Any]:
    """Return the peak memory of a process that samples a LAZ file in one piece, and within a budget."""
    import laspy

    path = folder / f"{points}.laz"
    header: Any = laspy.LasHeader(point_format=7, version="1.4")
    header.scales = np.full(3, 0.001)
    data: Any = laspy.LasData(header)
    xyz, colours = make_cloud(points)
    data.x, data.y, data.z = xyz.T
    data.red, data.green, data.blue = 257 * colours.T.astype(np.uint16)
    data.write(str(path))
    results = {}
    for name, budget in (("whole", ""), ("budget", BUDGET)):
        output = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path), str(folder / "out.laz"), budget],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ,
        ).stdout.split()
        results[name] = {"passes": int(output[0]), "kept": int(output[1]), "peak_bytes": int(output[2])}
    assert results["whole"]["kept"] == results["budget"]["kept"]
    return {"points": points, "file_bytes": path.stat().st_size} | results


def _pdal_version(program: str) -> str:
    text = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    return next(line for line in text.splitlines() if line.startswith("pdal ")).split()[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--points", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--peers", default="numpy,open3d,pdal", help="Peers to measure.")
    parser.add_argument("--pdal", default="pdal", help="Program of PDAL.")
    parser.add_argument("--without-memory", action="store_true", help="Only time.")
    options = parser.parse_args()
    check_output(options.output)
    peers = options.peers.split(",")
    pdal = shutil.which(options.pdal) if "pdal" in peers else None
    try:
        version = metadata.version("open3d") if "open3d" in peers else None
    except metadata.PackageNotFoundError:
        version = None
    in_process = [peer for peer in peers if peer == "numpy" or (peer == "open3d" and version is not None)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = compare_all(options.points, options.repeats, folder, peers=in_process)
        if pdal is not None:
            rows += compare_pdal(Path(pdal), options.points, options.repeats, folder)
        memory = [] if options.without_memory else [measure_memory(size, folder) for size in SIZES]
    record = {
        "what": "one point per cell of a cloud in memory and of a PLY file: pinchpoint and peers in turn",
        "command": f"OMP_NUM_THREADS=1 python benchmarks/cloud/voxel_sampling.py -o {options.output.name}"
        f" --points {options.points} --repeats {options.repeats}"
        + (f" --peers {options.peers}" if options.peers != parser.get_default("peers") else "")
        + " --without-memory" * options.without_memory,
        "created": now(),
        "machine": describe(),
        "open3d": version,
        "pdal": None if pdal is None else _pdal_version(pdal),
        "cell": CELL,
        "budget": BUDGET,
        "rows": rows,
        "memory": memory,
    }
    write_text(options.output, json.dumps(record, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['job']:6} {row['pinchpoint_s']:.3f} s  {row['peer']} {row['peer_s']:.3f} s  "
            f"speed-up {row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
        )
    for row in memory:
        print(f"{row['points']:,} points: {row['whole']} {row['budget']}")


if __name__ == "__main__":
    main()
