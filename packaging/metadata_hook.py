"""The long description and the links of the distribution, built with the address of the repository.

The address is `repository` under `[tool.hatch.metadata.hooks.custom]` in pyproject.toml, the only place that
has it. The README links to files of the repository by relative paths, which mean nothing on PyPI: they become
addresses of the released version. As long as there is no address, links become their text, and pictures are
left out.
"""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

README = "README.md"
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
_PICTURE_LINE = re.compile(r"^!\[[^\]]*\]\((?!\w+:)[^)\s]+\)\n\n?", re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)\s]+)\)")
_PAGES = {
    "Source": "",
    "Documentation": "blob/{}/docs/index.md",
    "Changelog": "blob/{}/CHANGELOG.md",
    "Issues": "issues",
}


class MetadataHook(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict) -> None:
        """Add the fields that pyproject.toml lists as dynamic."""
        text = Path(self.root, README).read_text(encoding="utf-8")
        repository, tag = self.config.get("repository", ""), f"v{metadata['version']}"
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": long_description(text, repository, tag),
        }
        metadata["urls"] = urls(repository, tag)


def long_description(text: str, repository: str, tag: str) -> str:
    """Return the README as PyPI shows it: no relative links. Code blocks stay as they are."""
    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _absolute(part, repository, tag) for part in parts)


def urls(repository: str, tag: str) -> dict[str, str]:
    """Return the links in the side bar of PyPI; none without an address."""
    if not repository:
        return {}
    base = repository.rstrip("/")
    return {name: f"{base}/{page.format(tag)}".rstrip("/") for name, page in _PAGES.items()}


def _absolute(text: str, repository: str, tag: str) -> str:
    if not repository:
        text = _PICTURE_LINE.sub("", text)
        return _LINK.sub(lambda link: "" if link[1] else _absolute(link[2], repository, tag), text)
    base = repository.rstrip("/")

    def address(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        # The text of a link may itself be a picture.
        inside = _absolute(link[2], repository, tag)
        return f"{link[1]}[{inside}]({base}/{kind}/{tag}/{link[3].removeprefix('./')})"

    return _LINK.sub(address, text)
