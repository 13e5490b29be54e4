"""Files that the report shows although they are not records of the toolkit: findings, and systems' records.

`scan --format json` prints findings without a kind, and the systems write records of kinds of their own
(a training, an evaluation, a bench).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pinchpoint.core.files import parse_json
from pinchpoint.core.records import KINDS, Record, load
from pinchpoint.core.records.base import SCHEMA


@dataclass(frozen=True)
class FindingsFile(Record):
    """What `scan --format json` printed."""

    kind: ClassVar[str] = "findings"
    target: str
    findings: tuple[dict[str, Any], ...]  # {"rule", "name", "file", "line", "message", "hint", "fixable"}
    machine: dict[str, Any] = field(default_factory=dict)
    created: str = ""

    def summary(self) -> list[tuple[str, str]]:
        return [("target", self.target), ("findings", f"{len(self.findings):,}")]


@dataclass(frozen=True)
class OtherRecord(Record):
    """A record of a kind that has no section of its own."""

    kind: ClassVar[str] = "other"
    target: str
    name: str  # its kind
    values: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)
    created: str = ""

    def summary(self) -> list[tuple[str, str]]:
        return [("target", self.target), ("kind", self.name)]


@dataclass(frozen=True)
class BenchFile(Record):
    """What `bench` wrote for one system: its comparisons as plain values."""

    kind: ClassVar[str] = "bench"
    system: str
    device: str
    sizes: str
    comparisons: tuple[dict[str, Any], ...]
    machine: dict[str, Any] = field(default_factory=dict)
    created: str = ""

    def summary(self) -> list[tuple[str, str]]:
        return [("system", f"{self.system} on {self.device}, {self.sizes} sizes")]


def load_any(path: str | Path) -> Record:
    """Read a record, findings, or a record of another kind. Raises `BadInput` for any other file."""
    try:
        data = parse_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return load(path)  # which says what is wrong
    if not isinstance(data, dict):
        return load(path)
    findings = data.get("findings")
    if (
        set(data) == {"findings"}
        and isinstance(findings, list)
        and all(isinstance(f, dict) for f in findings)
    ):
        files = sorted({str(finding.get("file", "")) for finding in findings})
        target = files[0] if len(files) == 1 else f"{len(files):,} files"
        return FindingsFile(target, tuple(findings))
    kind = data.get("kind")
    if isinstance(kind, str) and kind not in KINDS and data.get("schema") == SCHEMA:
        return other_record(data)
    return load(path)


def other_record(data: dict[str, Any]) -> OtherRecord | BenchFile:
    """Return a record of any kind as its plain values."""
    if data.get("kind") == BenchFile.kind and (bench := _bench_file(data)) is not None:
        return bench
    values = {
        key: value for key, value in data.items() if key not in ("kind", "schema", "machine", "created")
    }
    name = str(data.get("kind"))
    target = next((str(values[key]) for key in ("target", "system", "run") if values.get(key)), name)
    machine = data.get("machine")
    created = str(data.get("created") or "")
    return OtherRecord(target, name, values, machine if isinstance(machine, dict) else {}, created)


def _bench_file(data: dict[str, Any]) -> BenchFile | None:
    """Return the record of a bench; None if it does not have the parts that its charts need."""
    comparisons = data.get("comparisons")
    if not isinstance(comparisons, (list, tuple)) or not all(
        isinstance(one, dict)
        and isinstance(one.get("rows"), (list, tuple))
        and all(isinstance(row, dict) for row in one["rows"])
        for one in comparisons
    ):
        return None
    # Every comparison has its own machine and time; cases of one record may come from several runs.
    last = max(comparisons, key=lambda one: str(one.get("created")), default={})
    machine = last.get("machine")
    system, device, sizes = (str(data.get(key) or "") for key in ("system", "device", "sizes"))
    return BenchFile(
        system,
        device,
        sizes,
        tuple(comparisons),
        machine if isinstance(machine, dict) else {},
        str(last.get("created") or ""),
    )
