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
from pinchpoint.systems.operator.data.own.cases import Picture
from pinchpoint.systems.operator.data.surface import Mesh

# Azimuth and elevation of the eye in degrees: from the front and from behind, both from one side and above.
VIEWS = ((-148.0, 22.0), (32.0, 22.0))
VALUES, DIFFERENCE = "RdYlBu_r", "PuOr_r"
# Darkening of a face at grazing light: with more, a colour could not be compared with the colour bar.
_SHADE = 0.10
_MOST_FIELDS = 6  # drawn of one case
_AROUND = 2.0  # half the side of a picture of data in a plane, in lengths of the bodies in it
_DOTS = 40_000  # area of all dots of a picture, in square points
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
        for row, name in enumerate(("from the front", "from behind")):
            axes[row][0].text(
                0.0, 0.97, name, transform=axes[row][0].transAxes, va="top", color=style.MUTED, fontsize=8.5
            )
        _bar(figure, axes[:, :2], VALUES, scale, label, values=np.concatenate([prediction, true]))
        _bar(figure, axes[:, 2:], DIFFERENCE, off, f"predicted − true {label}", values=prediction - true)
        figure.suptitle(style.drawable(title), fontsize=11.5, fontweight="bold", x=0.01, ha="left")
        data = io.BytesIO()
        figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())


def field_pictures(
    path: Path,
    points: np.ndarray,
    shape: Picture,
    fields: dict[str, tuple[np.ndarray, np.ndarray]],
    *,
    title: str,
) -> Path:
    """Write a PNG with a row per field of a case: predicted, true and error. fields: two of (P,) by name.

    Data in a plane are drawn as they are, near the bodies in them if there are any; surfaces from the front;
    points without faces, and volumes in a thin layer through their middle, as dots.
    """
    fields = dict(list(fields.items())[:_MOST_FIELDS])
    with style.figure_style():
        figure, axes = style.canvas(rows=len(fields), columns=3, width=11.5, height=0.6 + 3.1 * len(fields))
        axes = np.asarray(axes).reshape(len(fields), 3)
        for row, (name, (prediction, true)) in enumerate(fields.items()):
            scale, off = _scale(true), _around_zero(prediction - true)
            parts = ((prediction, VALUES, scale), (true, VALUES, scale), (prediction - true, DIFFERENCE, off))
            for column, (values, colours, limits) in enumerate(parts):
                _draw_field(axes[row][column], points, shape, values, colours, limits)
            _bar(
                figure,
                axes[row : row + 1, :2],
                VALUES,
                scale,
                name,
                values=np.concatenate([prediction, true]),
            )
            _bar(
                figure,
                axes[row : row + 1, 2:],
                DIFFERENCE,
                off,
                f"predicted − true {name}",
                values=prediction - true,
            )
        for column, name in enumerate(("predicted", "true", "error")):
            axes[0][column].set_title(name, loc="center")
        figure.suptitle(style.drawable(title), fontsize=11.5, fontweight="bold", x=0.01, ha="left")
        data = io.BytesIO()
        figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())


def _draw_field(
    axes: Any,
    points: np.ndarray,
    shape: Picture,
    values: np.ndarray,
    colours: str,
    limits: tuple[float, float],
) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection

    flat = not points[:, 2].any()
    paint = colormaps[colours]
    if len(shape.triangles):
        of_faces = values[shape.owners] if len(shape.owners) else values[shape.triangles].mean(axis=1)
        if not flat:
            _draw(axes, shape.vertices, shape.triangles, of_faces, colours, limits, VIEWS[0])
            return
        shares = np.clip((of_faces - limits[0]) / (limits[1] - limits[0]), 0, 1)
        face = paint(shares)
        corners = shape.vertices[shape.triangles][:, :, :2]
        axes.add_collection(PolyCollection(list(corners), facecolors=face, edgecolors=face, linewidths=0.2))
        axes.autoscale_view()
    else:
        shown = np.arange(len(points))
        if not flat:
            thin = int(np.argmin(np.ptp(points, axis=0)))
            depth = np.abs(points[:, thin] - np.median(points[:, thin]))
            shown = np.argsort(depth, kind="stable")[: max(2_000, len(points) // 20)]
            points = np.delete(points, thin, axis=1)
        shares = np.clip((values[shown] - limits[0]) / (limits[1] - limits[0]), 0, 1)
        axes.scatter(points[shown, 0], points[shown, 1], c=paint(shares), s=_DOTS / len(shown), linewidths=0)
    if flat and len(shape.focus):
        low, high = shape.focus[:, :2]
        middle, half = (low + high) / 2, _AROUND * (high - low).max()
        inside = np.stack([points[:, :2].min(axis=0), points[:, :2].max(axis=0)])
        for limit, at in ((axes.set_xlim, 0), (axes.set_ylim, 1)):
            limit(max(inside[0, at], middle[at] - half), min(inside[1, at], middle[at] + half))
    axes.set_aspect("equal")
    axes.axis("off")


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
    from matplotlib.ticker import MaxNLocator

    ends = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    extend = ends[bool(values.min() < limits[0]), bool(values.max() > limits[1])]
    add_colour_bar(figure, axes, colours, Normalize(*limits), label, extend=extend, ticks=MaxNLocator(4))
