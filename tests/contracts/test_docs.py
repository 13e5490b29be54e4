"""The pages point at things that exist: files, anchors, verbs."""

from __future__ import annotations

import re
from pathlib import Path

from pinchpoint.cli.verb_group import find_verbs

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_link_of_a_page_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" in link:
                continue
            path, _, anchor = link.partition("#")
            if "reference/commands/" in path or "reference/python/" in path:
                continue  # made when the site is built, which checks them
            goal = (page.parent / path) if path else page
            if not goal.exists() or (anchor and anchor not in anchors(goal)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_a_page_names_only_verbs_that_exist() -> None:
    unknown = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        names = set(re.findall(r"`(?:\.venv/bin/)?pinchpoint ([a-z]+)", text))
        names |= set(re.findall(r"^(?:\$ )?(?:\.venv/bin/)?pinchpoint ([a-z]+)", blocks, re.MULTILINE))
        unknown += [f"{page.relative_to(ROOT)}: {name}" for name in sorted(names - set(find_verbs()))]
    assert unknown == []


def test_the_readme_names_every_verb() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [verb for verb in find_verbs() if f"`{verb}`" not in text] == []
