"""Comparison of pinchpoint's PLY reader and writer with plyfile.

The files are ASCII, binary, big-endian, and Gaussian splats with 60 columns.

    OMP_NUM_THREADS=1 python benchmarks/cloud/ply_files.py -o record.json [--points 300000] [--repeats 9]

Both read the same file, keep every third vertex, and write the result; they run alternately on one core.
Times are CPU seconds of the process. The record also says whether the kept vertices of the output are the
bytes of the input (an ASCII number printed again may change), and whether comments survive.
Needs `pip install plyfile`, which pinchpoint itself does not use.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.studies.timing import interleave, ratio_interval, timing_of
from pinchpoint.systems.cloud.files.ply import read_ply, write_ply

COMMENT = "a scan of the north wall"
FORMATS = ("ascii", "binary_little_endian", "binary_big_endian", "splats")
TYPES = {"f4": "float", "u1": "uchar", "i4": "int"}


def columns(name: str) -> list[tuple[str, str]]:
    """Return the property names of a vertex and their NumPy types."""
    if name == "splats":
        names = [
            *("x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"),
            *(f"f_rest_{number}" for number in range(43)),
            *("opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"),
        ]
        return [(column, "f4") for column in names]
    positions = [(axis, "f4") for axis in "xyz"]
    return [*positions, *((colour, "u1") for colour in ("red", "green", "blue")), ("label", "i4")]


def make_file(path: Path, name: str, points: int, seed: int = 0) -> Path:
    """Write a PLY file without using either program."""
    rng = np.random.default_rng(seed)
    order = ">" if name == "binary_big_endian" else "<"
    kinds = columns(name)
    vertices = np.empty(points, [(column, order + kind) for column, kind in kinds])
    for column, kind in kinds:
        vertices[column] = rng.normal(size=points) if kind == "f4" else rng.integers(0, 200, points)
    form = "binary_little_endian" if name == "splats" else name
    header = [f"ply\nformat {form} 1.0\ncomment {COMMENT}\nelement vertex {points}"]
    header += [f"property {TYPES[kind]} {column}" for column, kind in kinds]
    text = "\n".join([*header, "end_header\n"]).encode()
    if name != "ascii":
        path.write_bytes(text + vertices.tobytes())
        return path
    # Numbers have trailing zeros, as other programs write them, so printing them again would change the text.
    lines = [
        " ".join(
            f"{value:.6f}" if kind == "f4" else str(value)
            for value, (_, kind) in zip(row, kinds, strict=True)
        )
        for row in vertices.tolist()
    ]
    path.write_bytes(text + ("\n".join(lines) + "\n").encode())
    return path


def thin_ours(source: Path, output: Path, index: np.ndarray) -> None:
    write_ply(output, read_ply(source), keep=index)


def thin_plyfile(source: Path, output: Path, index: np.ndarray) -> None:
    from plyfile import PlyData, PlyElement  # pyright: ignore[reportMissingImports]

    data = PlyData.read(str(source))
    vertex = PlyElement.describe(data["vertex"].data[index], "vertex")
    PlyData([vertex], text=data.text, byte_order=data.byte_order, comments=data.comments).write(str(output))


def keeps_vertices(source: Path, output: Path, index: np.ndarray) -> bool:
    """Return whether the vertices of `output` are, byte for byte, those of `source` at `index`."""
    before, after = (path.read_bytes().partition(b"end_header\n")[2] for path in (source, output))
    if b"format ascii" in source.read_bytes()[:100]:
        lines = before.splitlines()
        return [lines[place] for place in index.tolist()] == after.splitlines()
    size = len(after) // len(index)
    rows = np.frombuffer(before, np.dtype((np.void, size)))
    return rows[index].tobytes() == after


def compare(name: str, points: int, repeats: int, folder: Path) -> dict[str, Any]:
    source = make_file(folder / f"{name}.ply", name, points)
    index = np.arange(0, points, 3)
    ours, theirs = folder / "ours.ply", folder / "plyfile.ply"
    times = interleave(
        lambda: thin_ours(source, ours, index),
        lambda: thin_plyfile(source, theirs, index),
        wait=lambda result: None,
        warmup=1,
        repeats=repeats,
        clock=time.process_time,
    )
    low, middle, high = sorted(ratio_interval(times[1], times[0]))
    return {
        "file": name,
        "points": points,
        "columns": len(columns(name)),
        "file_bytes": source.stat().st_size,
        "pinchpoint_s": timing_of(times[0]).median_s,
        "plyfile_s": timing_of(times[1]).median_s,
        "speedup": middle,
        "speedup_low": low,
        "speedup_high": high,
        "repeats": repeats,
        "pinchpoint_keeps_bytes": keeps_vertices(source, ours, index),
        "plyfile_keeps_bytes": keeps_vertices(source, theirs, index),
        "pinchpoint_keeps_comments": COMMENT.encode() in ours.read_bytes()[:2_000],
        "plyfile_keeps_comments": COMMENT.encode() in theirs.read_bytes()[:2_000],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--points", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    check_output(options.output)
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(name, options.points, options.repeats, Path(folder)) for name in FORMATS]
    record = {
        "what": "read a PLY file, keep every third vertex, write it: pinchpoint and plyfile, alternately",
        "command": f"OMP_NUM_THREADS=1 python benchmarks/cloud/ply_files.py -o {options.output.name}"
        f" --points {options.points} --repeats {options.repeats}",
        "created": now(),
        "machine": describe(),
        "plyfile": metadata.version("plyfile"),
        "rows": rows,
    }
    write_text(options.output, json.dumps(record, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['file']:22} {row['pinchpoint_s']:.3f} s  plyfile {row['plyfile_s']:.3f} s  "
            f"speed-up {row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]  "
            f"bytes kept {row['pinchpoint_keeps_bytes']} / {row['plyfile_keeps_bytes']}"
        )


if __name__ == "__main__":
    main()
