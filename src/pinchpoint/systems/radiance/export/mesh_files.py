"""Files of coloured meshes: PLY (binary), OBJ with colours at its vertices, and GLB (binary glTF 2).

z is up in PLY and OBJ, as in the camera's coordinates, and y in GLB, as glTF requires. Letters: V vertices, F
faces.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.core.units import show_choices
from pinchpoint.systems.radiance.export.surface import Mesh

SUFFIXES = (".glb", ".ply", ".obj")
_FLOAT, _SHORT, _INT = 5126, 5123, 5125  # types of numbers in glTF
_Y_UP = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])


def check_mesh_file(path: str | Path) -> None:
    """Raise an error for an unknown suffix."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise BadInput(
            f"A mesh cannot be written to {path}.", hint=f"Name a file that ends in {show_choices(SUFFIXES)}."
        )


def write_mesh(path: str | Path, mesh: Mesh, colours: np.ndarray) -> Path:
    """Write a mesh in the format of the file's suffix. colours: (V, 3) uint8, as on a screen (sRGB)."""
    check_mesh_file(path)
    pack = {".glb": _glb, ".ply": _ply, ".obj": _obj}[Path(path).suffix.lower()]
    return write_bytes(path, pack(mesh, colours))


def _ply(mesh: Mesh, colours: np.ndarray) -> bytes:
    names = ("x", "y", "z", "nx", "ny", "nz")
    vertices = np.zeros(
        len(mesh.vertices),
        dtype=[*((name, "<f4") for name in names), *((name, "u1") for name in ("red", "green", "blue"))],
    )
    for name, values in zip(names, (*mesh.vertices.T, *mesh.normals().T), strict=True):
        vertices[name] = values
    for name, values in zip(("red", "green", "blue"), colours.T, strict=True):
        vertices[name] = values
    faces = np.zeros(len(mesh.faces), dtype=[("count", "u1"), ("corners", "<i4", 3)])
    faces["count"], faces["corners"] = 3, mesh.faces
    head = [
        "ply",
        "format binary_little_endian 1.0",
        f"element vertex {len(vertices)}",
        *(f"property float {name}" for name in names),
        *(f"property uchar {name}" for name in ("red", "green", "blue")),
        f"element face {len(faces)}",
        "property list uchar int vertex_indices",
        "end_header",
    ]
    return ("\n".join(head) + "\n").encode() + vertices.tobytes() + faces.tobytes()


def _obj(mesh: Mesh, colours: np.ndarray) -> bytes:
    rows = np.concatenate([mesh.vertices, colours / 255.0], axis=1).tolist()
    lines = ["v {:.6f} {:.6f} {:.6f} {:.4f} {:.4f} {:.4f}".format(*row) for row in rows]
    lines += ["f {} {} {}".format(*face) for face in (mesh.faces + 1).tolist()]
    return ("\n".join(lines) + "\n").encode()


def _glb(mesh: Mesh, colours: np.ndarray) -> bytes:
    """Pack as GLB with an unlit material: light and shadow are part of the colours."""
    positions = (mesh.vertices @ _Y_UP.T).astype("<f4")
    shares = colours / 255.0
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    opaque = np.concatenate([linear, np.ones((len(linear), 1))], axis=1)
    parts = [
        positions.tobytes(),
        np.rint(65535 * opaque).astype("<u2").tobytes(),
        mesh.faces.astype("<u4").tobytes(),
    ]
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    accessors = [
        {
            "componentType": _FLOAT,
            "type": "VEC3",
            "count": len(positions),
            "min": positions.min(axis=0).tolist(),
            "max": positions.max(axis=0).tolist(),
        },
        {"componentType": _SHORT, "type": "VEC4", "count": len(positions), "normalized": True},
        {"componentType": _INT, "type": "SCALAR", "count": mesh.faces.size},
    ]
    scene = {
        "asset": {"version": "2.0", "generator": "pinchpoint radiance mesh"},
        "extensionsUsed": ["KHR_materials_unlit"],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "materials": [
            {
                "extensions": {"KHR_materials_unlit": {}},
                "pbrMetallicRoughness": {"metallicFactor": 0.0, "roughnessFactor": 1.0},
            }
        ],
        "meshes": [
            {
                "primitives": [
                    {"attributes": {"POSITION": 0, "COLOR_0": 1}, "indices": 2, "material": 0, "mode": 4}
                ]
            }
        ],
        "accessors": [{"bufferView": at, **accessor} for at, accessor in enumerate(accessors)],
        "bufferViews": [
            {"buffer": 0, "byteOffset": start, "byteLength": len(part), "target": target}
            for start, part, target in zip(starts, parts, (34962, 34962, 34963), strict=False)
        ],
        "buffers": [{"byteLength": starts[-1]}],
    }
    text = json.dumps(scene, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    data = b"".join(parts)  # a multiple of 4 bytes
    chunks = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(data), b"BIN\0") + data
    return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks
