"""Screenshots of the report for the pages; not part of the build of the site.

    python docs/hooks/screenshots.py before.json after.json

The records are those of docs/tutorials/out-of-memory.md. The sentences of the answer are stored in the
picture too, so that a test can compare them with what the tool says now. Needs Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, PngImagePlugin

from pinchpoint import compare, load, report
from pinchpoint.reporting.answers import answer

IMAGES = Path(__file__).parents[1] / "images"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH, SCALE = 1168, 1.25  # of the page in its own pixels; pixels of the picture per pixel of the page
TOP = 66  # the bar with the date, which is left out


def shoot(page: Path, picture: Path, *, height: int, texts: tuple[str, ...]) -> None:
    """Write the upper part of a page as a PNG, with the sentences as its description."""
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit("No Chromium was found in PATH.")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "page.png"
        command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", f"--screenshot={raw}"]
        command += [f"--window-size={WIDTH},{height}", f"--force-device-scale-factor={SCALE}"]
        command += ["--virtual-time-budget=8000", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        with Image.open(raw) as page_image:
            image = page_image.convert("RGB")
        description = PngImagePlugin.PngInfo()
        description.add_text("Description", "\n".join(texts))
        image = image.crop((0, round(TOP * SCALE), *image.size))
        image.save(picture, pnginfo=description, optimize=True)


def sentences(before: str | Path, after: str | Path) -> dict[str, tuple[str, ...]]:
    """Return the sentences of the answer that each picture shows."""
    forecast = answer(load(before))
    return {
        "report.png": (forecast.text, *forecast.changes),
        "compare.png": compare(before, after).conclusion,
    }


def outdated(before: str | Path, after: str | Path) -> list[str]:
    """Return the pictures that show other sentences than the records give now."""
    names = []
    for name, texts in sentences(before, after).items():
        with Image.open(IMAGES / name) as image:
            if image.info.get("Description") != "\n".join(texts):
                names.append(name)
    return names


def main(before: str, after: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        for name, texts in sentences(before, after).items():
            both = name == "compare.png"
            report([before, after] if both else [before], page, compare=both)
            shoot(page, IMAGES / name, height=870 if both else 912, texts=texts)


if __name__ == "__main__":
    main(*sys.argv[1:])
