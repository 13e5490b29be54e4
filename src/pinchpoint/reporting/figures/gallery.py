"""All figures of a study as PNG and SVG bytes. Figures are found by walking this folder."""

from __future__ import annotations

import io
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from pinchpoint.core.records import Study
from pinchpoint.reporting import figures
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
# Without dates and versions in the metadata, the same study always gives the same bytes.
METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}

Draw = Callable[[Study], "Figure | None"]


def drawers() -> dict[str, Draw]:
    """Return the `draw` function of each figure, by the name of its files."""
    functions = {}
    for info in pkgutil.iter_modules(figures.__path__):
        module = import_module(f"{figures.__name__}.{info.name}")
        if hasattr(module, "draw"):
            functions[info.name] = module.draw
    return functions


def draw_all(study: Study) -> dict[str, bytes]:
    """Return file name -> content for every figure that has data in this study."""
    files: dict[str, bytes] = {}
    for name, draw in drawers().items():
        with style.figure_style():
            figure = draw(study)
            if figure is None:
                continue
            for kind in FORMATS:
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, metadata=METADATA[kind])
                files[f"{name}.{kind}"] = buffer.getvalue()
                figure.set_layout_engine("none")  # laid out once, so that both formats have the same layout
    return files
