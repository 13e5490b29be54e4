"""Pictures on the page of a report: each is part of the page, with a title and a caption."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

from pinchpoint.core.errors import BadInput
from pinchpoint.reporting.html import Html, panel, tag

GalleryPicture = tuple[Path, str, str]  # file, title, caption
_TYPES = {".png": "image/png", ".gif": "image/gif"}


def gallery(pictures: Iterable[GalleryPicture]) -> Html | None:
    """Return a section with the pictures, or None if there are none."""
    panels = [panel(title, _image(path, title), note=caption, half=True) for path, title, caption in pictures]
    if not panels:
        return None
    return tag("section", tag("h2", "Pictures"), tag("div", *panels, class_="blocks"), id="pictures")


def _image(path: Path, title: str) -> Html:
    kind = _TYPES.get(path.suffix.lower())
    if kind is None:
        raise BadInput(f"{path} cannot be shown on the page.", hint="Give a PNG or a GIF file.")
    data = base64.b64encode(path.read_bytes()).decode()
    return tag("img", src=f"data:{kind};base64,{data}", alt=title, class_="picture")
