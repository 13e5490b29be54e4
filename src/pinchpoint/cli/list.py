"""List what pinchpoint knows: workloads, cards."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import typer

from pinchpoint.console import printing
from pinchpoint.core.errors import BadInput


def command(
    what: str = typer.Argument(..., metavar="workloads|cards", help="What to list."),
    as_json: bool = typer.Option(
        False, "--json", help="Print JSON: everything known of each, for other programs."
    ),
) -> None:
    """List the workloads that ship, or the cards with their memory, workspace and context."""
    kinds: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], None]]] = {
        "workloads": (_workloads, _show_workloads),
        "cards": (_cards, _show_cards),
    }
    if what not in kinds:
        raise BadInput(f"there is no list of {what!r}", hint=f"use one of: {', '.join(kinds)}")
    find, show = kinds[what]
    found = find()
    if as_json:
        printing.show_json(json.dumps([_plain(item) for item in found.values()], indent=1))
    else:
        show(found)


def _workloads() -> dict[str, Any]:
    from pinchpoint.core.targets import shipped

    return dict(shipped())


def _show_workloads(found: dict[str, Any]) -> None:
    rows = [
        (w.name, w.framework, w.axis, ", ".join(w.modes), ", ".join(v.name for v in w.variants))
        for w in found.values()
    ]
    printing.show_table(("name", "framework", "axis", "modes", "variants"), rows)
    printing.show("")
    for workload in found.values():
        printing.show(f"{workload.name}: {workload.about}")
    settings = [
        (w.name, s.name, s.default, ", ".join(s.choices) or "-", s.about)
        for w in found.values()
        for s in w.settings
    ]
    if settings:
        printing.show("")
        printing.show_table(("workload", "setting", "default", "one of", "about"), settings)
        printing.say("\nsettings: choose with --set, such as --set mlp=64,64")


def _cards() -> dict[str, Any]:
    from pinchpoint.forecasting.cards import cards

    return dict(cards())


def _show_cards(found: dict[str, Any]) -> None:
    from pinchpoint.core.units import show_bytes

    rows = [
        (
            c.name,
            c.title,
            show_bytes(c.memory_bytes),
            f"{c.capability[0]}.{c.capability[1]}",
            show_bytes(c.cublas_workspace_bytes),
            show_bytes(c.context_bytes) + ("" if c.estimated else " *"),
        )
        for c in found.values()
    ]
    numbers = ("memory", "sm", "cuBLAS", "context")
    printing.show_table(("name", "card", *numbers), rows, right=numbers)
    printing.say("\nmemory: what CUDA offers a process; cuBLAS: the workspace of a handle;")
    printing.say("context: * measured, others worked out from it. Yours: docs/cards.md")


def _plain(item: Any) -> dict[str, Any]:
    """A dataclass as JSON values; a workload's build function becomes its address."""
    data = dataclasses.asdict(item)
    build = data.get("build")
    if callable(build):
        data["build"] = f"{build.__module__}:{build.__qualname__}"
    return data
