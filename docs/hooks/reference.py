"""A hook of MkDocs that writes the reference from the code: commands, Python names, cards.

Pages under reference/commands and reference/python exist in the site only. The comment
`<!-- generated: cards -->` of a page is replaced by the table of cards.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import python_pages
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import pinchpoint
import pinchpoint.kit
from pinchpoint.cli.main import build
from pinchpoint.core.units import show_bytes
from pinchpoint.forecasting import cards as known


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace a folder that ends in / in the navigation by its generated pages."""
    pages = list(generated())
    config.nav = _expanded(config.nav, pages)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, text in generated():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return markdown.replace("<!-- generated: cards -->", cards())


def _expanded(nav: Any, pages: list[tuple[str, str]]) -> Any:
    if isinstance(nav, list):
        return [_expanded(entry, pages) for entry in nav]
    if isinstance(nav, dict):
        return {title: _expanded(entry, pages) for title, entry in nav.items()}
    return [_entry(uri) for uri, _ in pages if uri.startswith(nav)] if nav.endswith("/") else nav


def _entry(uri: str) -> str | dict[str, str]:
    """Return a page for the navigation; a command goes by its name."""
    folder, _, name = uri.rpartition("/")
    return {name.removesuffix(".md"): uri} if folder.endswith("commands") and name != "index.md" else uri


def generated() -> Iterator[tuple[str, str]]:
    """Yield the address and the Markdown text of every generated page."""
    command: Any = typer.main.get_command(build())
    top = command.make_context("pinchpoint", [], resilient_parsing=True)
    listed = [f"| [`{name}`]({name}.md) | {_summary(part)} |" for name, part in command.commands.items()]
    yield (
        "reference/commands/index.md",
        "\n".join(
            ["# Commands", "", _options(command, top), "", "| command | what it does |", "|---|---|", *listed]
        ),
    )
    for name, part in command.commands.items():
        yield f"reference/commands/{name}.md", "\n".join(_command(name, part, top, level=1))
    yield from _python()


def _summary(part: Any) -> str:
    return part.get_short_help_str(limit=200) if part.short_help is None else part.short_help


def _command(name: str, part: Any, parent: Any, *, level: int) -> Iterator[str]:
    context = part.make_context(name, [], parent=parent, resilient_parsing=True)
    yield f"{'#' * level} {context.command_path}\n"
    yield f"{_prose(part.help or '')}\n"
    if hasattr(part, "commands"):
        for inner, command in part.commands.items():
            yield from _command(inner, command, context, level=level + 1)
        return
    yield f"```text\n{context.get_usage().removeprefix('Usage: ')}\n```\n"
    yield _options(part, context) + "\n"


def _prose(text: str) -> str:
    """Return a help text in which indented lines are a block of commands, and options are set as code."""
    parts = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if part.startswith("\b\n") or all(line.startswith("  ") for line in part.splitlines()):
            parts.append(f"```text\n{part.removeprefix(chr(8)).strip()}\n```")
        else:
            parts.append(_with_code(part))
    return "\n\n".join(parts)


def _with_code(text: str) -> str:
    """Set options such as --card as code, outside what is code already."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"(?<![\w-])(--?[a-z][\w-]*)", r"`\1`", part)
        for part in parts
    )


def _options(part: Any, context: Any) -> str:
    rows = []
    for parameter in part.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            form, text = (" ".join(cell.split()) for cell in record)
            rows.append(f"| `{_form(form)}` | {_with_code(text.replace('|', '&#124;'))} |")
    return "\n".join(["| argument or option | meaning |", "|---|---|", *rows]) if rows else ""


def _form(form: str) -> str:
    """Return `--size TEXT` for `--size <str>`."""
    kinds = {"str": "TEXT", "int": "N", "float": "X", "Path": "PATH", "bool": ""}

    def kind(mark: re.Match[str]) -> str:
        inner = re.sub(r"^(?:list|tuple)\[(.*)\]$", r"\1", mark[1])
        return kinds.get(inner, inner.upper()) if form.startswith("-") else ""

    return re.sub(r"<([^>]*)>", kind, form).strip()


def _python() -> Iterator[tuple[str, str]]:
    homes = dict(pinchpoint._HOMES)
    kinds = {name: python_pages.is_class(name, home) for name, home in homes.items()}
    records = [
        name for name, is_class in kinds.items() if is_class and homes[name] == "pinchpoint.core.records"
    ]
    functions = [name for name, is_class in kinds.items() if not is_class]
    classes = [name for name, is_class in kinds.items() if is_class and name not in records]
    pages = {
        "functions": ("Functions", "Every verb is a function: `from pinchpoint import predict`.", functions),
        "classes": ("Workloads and other classes", "What you describe your own code with.", classes),
        "records": (
            "Record classes",
            "What the functions return. The meaning of every key is on the page [records](../records.md).",
            records,
        ),
    }
    for uri, (title, text, names) in pages.items():
        yield f"reference/python/{uri}.md", python_pages.page(title, text, names, homes)
    kit = {name: f"pinchpoint.kit.{home}" for name, home in pinchpoint.kit._MODULES.items()}
    text = "Introduced in [kit](../../toolkit/kit.md): `from pinchpoint.kit import segment_sum`."
    yield "reference/python/kit.md", python_pages.page("pinchpoint.kit", text, pinchpoint.kit.__all__, kit)


def cards() -> str:
    """Return the table of the built-in cards."""
    rows = []
    for card in known.cards().values():
        capability = ".".join(map(str, card.capability))
        sizes = map(show_bytes, (card.memory_bytes, card.cublas_workspace_bytes, card.context_bytes))
        memory, workspace, context = sizes
        observed = "" if card.estimated else " *"
        rows.append(
            f"| `{card.name}` | {card.title} | {memory} | {capability} | {workspace} | {context}{observed} |"
        )
    head = "| name | card | memory | compute capability | cuBLAS workspace | context |"
    return "\n".join([head, "|---|---|--:|--:|--:|--:|", *rows])
