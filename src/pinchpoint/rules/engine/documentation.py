"""The documentation of the rules, from their docstrings: one rule as text, all rules as a page.

`python -m pinchpoint.rules.engine.documentation > docs/reference/rules.md` writes the page.
"""

from __future__ import annotations

from pinchpoint.rules.engine.catalog import all_rules
from pinchpoint.rules.engine.rule import FAMILIES, Rule

_TITLES = {
    "waits": "Waits",
    "recompiles": "Recompiles",
    "memory": "Memory",
    "copies": "Copies",
    "answers": "Wrong answers",
}
_START = r"""# Rules of `scan`

This page is made from the docstrings of the rules in `src/pinchpoint/rules/`. Tests check that each rule
finds its bad example, says nothing about its good one, and, where it has a fix, that the fix turns one
into the other. How to run a scan, fix, and allow findings is described in [scan](../toolkit/scan.md)."""


def explanation(rule: Rule) -> str:
    """One rule as text for a terminal."""
    bad, good = rule.examples()
    parts = [
        f"{rule.code} {rule.name}: {rule.title}",
        rule.text(),
        f"hint: {rule.hint}",
        f"fix: {_fix(rule)}",
        f"Bad:\n\n{_indent(bad)}",
        f"Good:\n\n{_indent(good)}",
        f"Allow it on a line with `# pinchpoint: allow {rule.name}`.",
    ]
    return "\n\n".join(parts)


def page() -> str:
    """All rules as Markdown."""
    parts = [_START]
    for number, family in FAMILIES.items():
        rules = [rule for rule in all_rules() if rule.family == family]
        rows = "".join(f"| {r.code} | [{r.name}](#{r.code.lower()}-{r.name}) | {r.title} |\n" for r in rules)
        parts.append(
            f"## {_TITLES[family]} (PP{number}xx)\n| rule | name | |\n|---|---|---|\n{rows}".rstrip()
        )
        parts += [_section(rule) for rule in rules]
    return "\n\n".join(parts) + "\n"


def _section(rule: Rule) -> str:
    bad, good = rule.examples()
    text = " ".join(rule.text().split("\n")).replace("  ", "\n\n")
    return (
        f"### {rule.code} {rule.name}\n{rule.title} {text}\n\nFix: {_fix(rule)}\n\n"
        f"Bad:\n```python\n{bad}```\n\nGood:\n```python\n{good}```"
    )


def _fix(rule: Rule) -> str:
    if rule.fix is None:
        return "by hand."
    return "`--fix`." if rule.fix.safe else "`--unsafe-fixes`; it may change results."


def _indent(text: str) -> str:
    return "".join(
        f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True)
    ).rstrip()


if __name__ == "__main__":
    print(page(), end="")
