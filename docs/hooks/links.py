"""A hook of MkDocs: links out of docs/ and the address of the repository.

The site holds a copy of every linked file outside docs/, so that it works offline. Examples that name the
repository as OWNER/pinchpoint get its address, if pyproject.toml has one.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PLACEHOLDER = "OWNER/pinchpoint"
LINK = re.compile(r"\]\((\.\./[^)\s#]+)(#[^)\s]*)?\)")


def _outside(uri: str, link: str) -> str | None:
    """Return the path from the top of the repository of a link out of docs/; None if it stays inside."""
    path = os.path.normpath(os.path.join("docs", os.path.dirname(uri), link))
    return None if path.startswith("docs/") or not (ROOT / path).is_file() else path


def _copy(path: str) -> str:
    return f"files/{path}" if path.endswith((".json", ".png")) else f"files/{path}.txt"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page in files.documentation_pages():
        for link, _ in LINK.findall(page.content_string):
            path = _outside(page.src_uri, link)
            if path is not None and files.get_file_from_path(_copy(path)) is None:
                files.append(File.generated(config, _copy(path), content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = os.path.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, match[1])
        return match[0] if path is None else f"]({os.path.relpath(_copy(path), folder)})"

    return with_address(LINK.sub(link, markdown), repository())


def repository() -> str:
    """Return the address of the repository that the build of the distribution reads; it may be empty."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]


def with_address(markdown: str, address: str) -> str:
    """Return the text with the address of the repository where it has the placeholder."""
    if not address:
        return markdown
    markdown = markdown.replace(f"https://github.com/{PLACEHOLDER}", address.rstrip("/"))
    return markdown.replace(PLACEHOLDER, "/".join(address.rstrip("/").split("/")[-2:]))
