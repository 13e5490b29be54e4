"""Settings of a scan from `[tool.pinchpoint.scan]` in the nearest pyproject.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput

_KEYS = ("select", "ignore", "exclude")


@dataclass(frozen=True)
class Settings:
    """select, ignore: rules by number, name, or family. exclude: patterns of files and folders left out."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def read_settings(path: str) -> Settings:
    """The settings that apply to a path: those of the nearest pyproject.toml at or above it."""
    start = Path(path).resolve()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return _parse(file)
    return Settings()


def _parse(file: Path) -> Settings:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"Cannot read the settings in {file}: {error}.", hint="Correct the file.") from error
    table: Any = data.get("tool", {})
    for key in ("pinchpoint", "scan"):
        table = table.get(key, {}) if isinstance(table, dict) else {}
    unknown = sorted(set(table) - set(_KEYS))
    if unknown:
        raise BadInput(
            f"{file} has an unknown setting tool.pinchpoint.scan.{unknown[0]}.",
            hint=f"Use {', '.join(_KEYS)}.",
        )
    values: dict[str, tuple[str, ...]] = {}
    for key, value in table.items():
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise BadInput(
                f"The setting tool.pinchpoint.scan.{key} in {file} is not a list of texts.",
                hint=f'Write {key} = ["..."].',
            )
        values[key] = tuple(value)
    return Settings(**values)
