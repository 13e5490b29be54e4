"""The documentation as a site: it builds without warnings, loads nothing from elsewhere, and has a search."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import typer

from pinchpoint.cli.main import build

pytest.importorskip("material", reason="MkDocs Material is missing; install pinchpoint[docs]")

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert (result.returncode, result.stdout) == (0, "")
    return folder


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = re.compile(r'<(?:script|img|iframe|link)\b[^>]*?(?:src|href)="?((?:https?:)?//[^"\s>]+)')
    pages = [*site.rglob("*.html")]
    assert len(pages) > 40
    assert [
        (page.name, address) for page in pages for address in loads.findall(page.read_text(encoding="utf-8"))
    ] == []
    styles = [style.read_text(encoding="utf-8") for style in site.rglob("*.css")]
    assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", "\n".join(styles))


def test_examples_name_the_repository_of_the_build() -> None:
    hook = ROOT / "docs" / "hooks" / "links.py"
    spec = spec_from_file_location("links_hook", hook)
    assert spec is not None and spec.loader is not None
    links = module_from_spec(spec)
    spec.loader.exec_module(links)
    text = "uses: OWNER/pinchpoint@v0, repo: https://github.com/OWNER/pinchpoint"
    address = "https://git.example.org/ada/pinchpoint"
    assert links.with_address(text, address) == f"uses: ada/pinchpoint@v0, repo: {address}"
    assert links.with_address(text, "") == text
    named = [path for path in (ROOT / "docs").rglob("*.md") if "OWNER" in path.read_text(encoding="utf-8")]
    assert named and not links.repository().endswith("/"), "the placeholder is still used"


def test_the_reference_has_every_option_of_every_command(site: Path) -> None:
    command: Any = typer.main.get_command(build())
    missing = []
    for name, part in command.commands.items():
        text = (site / "reference" / "commands" / f"{name}.html").read_text(encoding="utf-8")
        for inner in getattr(part, "commands", {name: part}).values():
            options = {option for parameter in inner.params for option in parameter.opts}
            missing += [(name, option) for option in options if option[0] == "-" and option not in text]
    assert missing == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome on this machine")
def test_the_search_works_in_a_page_opened_as_a_file(site: Path, tmp_path: Path) -> None:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    address = f"{(site / 'toolkit' / 'plan.html').as_uri()}?q=checkpointing"
    result = subprocess.run(
        [
            str(CHROMIUM),
            *flags,
            f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            address,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert "matching documents" in result.stdout
    assert re.search(r'href="[^"]*reference/records.html[^"]*" class="md-search-result__link"', result.stdout)
