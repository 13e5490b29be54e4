"""A hook of MkDocs: the site holds a copy of every linked file outside docs/, so that it works offline."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
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

    return LINK.sub(link, markdown)
