"""Pictures of a field on a body: predicted, true and their difference, from the front and from the back.

Faces are projected and drawn from back to front, without those that face away; this is sharper than 3-D axes
and as fast for 20,000 faces. Predicted and true share one colour scale; the difference has its own. F faces.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.files import write_bytes
from pinchpoint.reporting.figures import style
from pinchpoint.systems.common.colour_bar import add_colour_bar
from pinchpoint.systems.operator.data.surface import Mesh

# Azimuth and elevation of the eye in degrees: from ahead and from behind, both from one side and above.
VIEWS = ((-148.0, 22.0), (32.0, 22.0))
VALUES, DIFFERENCE = "RdYlBu_r", "PuOr_r"
# Darkening of a face at grazing light: with more, a colour could not be compared with the colour bar.
_SHADE = 0.10
_CLIP = 0.5  # percent of the faces at each end that do not affect the colour scale


def picture(
    path: Path, mesh: Mesh, prediction: np.ndarray, true: np.ndarray, *, title: str, label: str
) -> Path:
    """Write a PNG. prediction, true: (F,); label: the quantity that the colours show."""
    vertices, faces = mesh.vertices.cpu().numpy(), mesh.faces.cpu().numpy()
    with style.figure_style():
        figure, axes = style.canvas(rows=len(VIEWS), columns=3, width=11.5, height=5.6)
        scale, off = _scale(np.concatenate([prediction, true])), _around_zero(prediction - true)
        parts = ((prediction, VALUES, scale), (true, VALUES, scale), (prediction - true, DIFFERENCE, off))
        for column, (name, (values, colours, limits)) in enumerate(
            zip(("predicted", "true", "error"), parts, strict=True)
        ):
            for row, view in enumerate(VIEWS):
                _draw(axes[row][column], vertices, faces, values, colours, limits, view)
            axes[0][column].set_title(name, loc="center")
        for row, name in enumerate(("from ahead", "from behind")):
            axes[row][0].text(
                0.0, 0.97, name, transform=axes[row][0].transAxes, va="top", color=style.MUTED, fontsize=8.5
            )
        _bar(figure, axes[:, :2], VALUES, scale, label, values=np.concatenate([prediction, true]))
        _bar(figure, axes[:, 2:], DIFFERENCE, off, f"predicted − true {label}", values=prediction - true)
        figure.suptitle(style.drawable(title), fontsize=11.5, fontweight="bold", x=0.01, ha="left")
        data = io.BytesIO()
        figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())


def _draw(
    axes: Any, vertices: Any, faces: Any, values: Any, colours: str, limits: tuple[float, float], view: Any
) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection

    right, up, eye = _camera(*view)
    corners = vertices[faces]  # (F, 3, 3)
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-30)
    visible = normals @ eye > 0
    order = np.argsort(corners[visible].mean(axis=1) @ eye)
    flat = np.stack([corners[visible] @ right, corners[visible] @ up], axis=-1)[order]
    share = np.clip((values[visible][order] - limits[0]) / (limits[1] - limits[0]), 0, 1)
    light = (0.35 * right + 0.75 * up + 0.6 * eye) / math.sqrt(0.35**2 + 0.75**2 + 0.6**2)
    shade = 1 - _SHADE * (1 - np.clip(normals[visible][order] @ light, 0, 1))
    paint = colormaps[colours](share)
    paint[:, :3] *= shade[:, None]
    # Edges in the colour of their face: without them the background is visible between neighbours.
    axes.add_collection(PolyCollection(list(flat), facecolors=paint, edgecolors=paint, linewidths=0.35))
    axes.autoscale_view()
    axes.set_aspect("equal")
    axes.margins(0.03)
    axes.axis("off")


def _camera(azimuth: float, elevation: float) -> tuple[Any, Any, Any]:
    """Unit vectors to the right, up and towards the eye, each (3,)."""
    a, e = math.radians(azimuth), math.radians(elevation)
    eye = np.array([math.cos(e) * math.cos(a), math.cos(e) * math.sin(a), math.sin(e)])
    right = np.array([-math.sin(a), math.cos(a), 0.0])
    return right, np.cross(eye, right), eye


def _scale(values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, (_CLIP, 100 - _CLIP))
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(high) + 0.5)


def _around_zero(values: np.ndarray) -> tuple[float, float]:
    most = float(np.percentile(np.abs(values), 100 - _CLIP)) or 1.0
    return -most, most


def _bar(
    figure: Any, axes: Any, colours: str, limits: tuple[float, float], label: str, *, values: np.ndarray
) -> None:
    from matplotlib.colors import Normalize

    ends = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    extend = ends[bool(values.min() < limits[0]), bool(values.max() > limits[1])]
    add_colour_bar(figure, axes, colours, Normalize(*limits), label, extend=extend)
