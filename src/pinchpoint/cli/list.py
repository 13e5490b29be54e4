"""List the workloads, the cards, or the rules of `scan` that pinchpoint knows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import typer

from pinchpoint.console import printing
from pinchpoint.core.errors import BadInput


def command(
    what: str = typer.Argument(..., metavar="workloads|cards|rules", help="What to list."),
    as_json: bool = typer.Option(False, "--json", help="Print all details as JSON."),
) -> None:
    """List the workloads, the cards with their memory, workspace and context, or the rules of `scan`.

    Workloads of other installed packages are listed as well, with the error of one that cannot be loaded.
    """
    lists: dict[str, Callable[[bool], None]] = {
        "workloads": _list_workloads,
        "cards": _list_cards,
        "rules": _list_rules,
    }
    if what not in lists:
        raise BadInput(f"There is no list of {what!r}.", hint=f"Use one of: {', '.join(lists)}.")
    lists[what](as_json)


def _list_workloads(as_json: bool) -> None:
    from pinchpoint.core.discovery import find_workloads

    workloads, broken = find_workloads()
    if as_json:
        errors = [{"name": name, "error": error.what, "hint": error.hint} for name, error in broken.items()]
        printing.show_json(json.dumps([*map(_plain, workloads.values()), *errors], indent=1))
        return
    rows = [
        (w.name, w.framework, w.axis, ", ".join(w.modes), ", ".join(v.name for v in w.variants))
        for w in workloads.values()
    ]
    printing.show_table(("name", "framework", "axis", "modes", "variants"), rows)
    printing.show("")
    for workload in workloads.values():
        printing.show(f"{workload.name}: {workload.about}")
    for name, error in broken.items():
        printing.show(f"{name}: error: {error.what}", style="red")
    settings = [
        (w.name, s.name, s.default, ", ".join(s.choices) or "-", s.about)
        for w in workloads.values()
        for s in w.settings
    ]
    if settings:
        printing.show("")
        printing.show_table(("workload", "setting", "default", "one of", "about"), settings)
        printing.say("\nSet a setting with --set, for example --set mlp=64,64.")


def _list_cards(as_json: bool) -> None:
    from pinchpoint.core.units import show_bytes
    from pinchpoint.forecasting.cards import cards

    all_cards = cards()
    if as_json:
        printing.show_json(json.dumps([_plain(card) for card in all_cards.values()], indent=1))
        return

    rows = [
        (
            c.name,
            c.title,
            show_bytes(c.memory_bytes),
            f"{c.capability[0]}.{c.capability[1]}",
            show_bytes(c.cublas_workspace_bytes),
            show_bytes(c.context_bytes) + ("" if c.estimated else " *"),
        )
        for c in all_cards.values()
    ]
    numbers = ("memory", "sm", "cuBLAS", "context")
    printing.show_table(("name", "card", *numbers), rows, right=numbers)
    printing.say("\nmemory: what CUDA makes available to a process; cuBLAS: the workspace of one handle;")
    printing.say(
        "context: * was observed on such a card, others are estimated. To add a card, see the page on cards."
    )


def _list_rules(as_json: bool) -> None:
    from pinchpoint.rules.engine.catalog import all_rules

    fixes = [None if r.fix is None else "safe" if r.fix.safe else "unsafe" for r in all_rules()]
    if as_json:
        rules = [
            {"rule": r.code, "name": r.name, "family": r.family, "about": r.title, "hint": r.hint, "fix": fix}
            for r, fix in zip(all_rules(), fixes, strict=True)
        ]
        printing.show_json(json.dumps(rules, indent=1))
        return
    rows = [(r.code, r.name, fix or "-", r.title) for r, fix in zip(all_rules(), fixes, strict=True)]
    printing.show_table(("rule", "name", "fix", "about"), rows)


def _plain(item: Any) -> dict[str, Any]:
    """A dataclass as JSON values; the build function of a workload is replaced by its address."""
    data = dataclasses.asdict(item)
    build = data.get("build")
    if callable(build):
        data["build"] = f"{build.__module__}:{build.__qualname__}"
    return data
