"""Explain a rule of `scan`."""

from __future__ import annotations

import typer

from pinchpoint.console import printing


def command(
    rule: str = typer.Argument(..., metavar="RULE", help="A number or name: PP101, sync-in-loop."),
) -> None:
    """Describe a rule of `scan`: what it finds and why, what to do, a bad and a good example."""
    from pinchpoint.rules.engine.catalog import find_rule
    from pinchpoint.rules.engine.documentation import explanation

    printing.show(explanation(find_rule(rule)))
