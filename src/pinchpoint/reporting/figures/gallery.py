"""Every figure a study gives rise to, as PNG and SVG bytes. Figures are found by walking this folder."""

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
# Without these two lines of metadata, the same study gives the same bytes on any day.
METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}

Draw = Callable[[Study], "Figure | None"]


def drawers() -> dict[str, Draw]:
    """`draw` of each figure, by the name its files get."""
    found = {}
    for info in pkgutil.iter_modules(figures.__path__):
        module = import_module(f"{figures.__name__}.{info.name}")
        if hasattr(module, "draw"):
            found[info.name] = module.draw
    return found


def draw_all(study: Study) -> dict[str, bytes]:
    """File name -> content, for every figure this study has something to show in."""
    made: dict[str, bytes] = {}
    for name, draw in drawers().items():
        with style.applied():
            figure = draw(study)
            if figure is None:
                continue
            for kind in FORMATS:
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, metadata=METADATA[kind])
                made[f"{name}.{kind}"] = buffer.getvalue()
                figure.set_layout_engine("none")  # laid out once: the second format has the same places
    return made
