"""Checkpoints of a run: written whole or not at all, hashed, the last two and the best kept.

`index.json` lists what is there. It is written after a checkpoint and before an old one is removed,
so a run killed at any instant finds a list of checkpoints that exist. Files hold tensors and plain
values alone and are read with `weights_only`.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes, write_text

KEPT = 2


@dataclass(frozen=True)
class Entry:
    """One checkpoint. `score`: error on what is held back, None where nothing is."""

    file: str
    step: int
    sha256: str
    score: float | None = None


class Checkpoints:
    """The checkpoints in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entries(self) -> list[Entry]:
        """What the index lists and is there, oldest first."""
        index = self.folder / "index.json"
        if not index.exists():
            return []
        try:
            listed = [Entry(**entry) for entry in json.loads(index.read_text(encoding="utf-8"))]
        except (ValueError, TypeError) as error:
            raise BadInput(
                f"the list of checkpoints {index} is damaged: {error}",
                hint="start again with another -o, or restore the file",
            ) from error
        return sorted(
            (entry for entry in listed if (self.folder / entry.file).is_file()), key=lambda entry: entry.step
        )

    def last(self) -> Entry | None:
        return max(self.entries(), key=lambda entry: entry.step, default=None)

    def best(self) -> Entry | None:
        """The lowest score; the latest of equals."""
        scored = [entry for entry in self.entries() if entry.score is not None]
        return min(scored, key=lambda entry: (entry.score, -entry.step), default=None)

    def save(self, state: dict[str, Any], *, step: int, score: float | None = None) -> Path:
        """Write one more, and remove those that are neither among the last two nor the best."""
        self.folder.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        made = Entry(f"step-{step:08d}.pt", step, hashlib.sha256(data).hexdigest(), score)
        path = write_bytes(self.folder / made.file, data)
        found = [entry for entry in self.entries() if entry.step < step] + [made]
        scored = [entry for entry in found if entry.score is not None]
        best = min(scored, key=lambda entry: (entry.score, -entry.step), default=None)
        kept = [entry for entry in found if entry in found[-KEPT:] or entry == best]
        write_text(self.folder / "index.json", json.dumps([asdict(entry) for entry in kept], indent=1) + "\n")
        # A dot before the name: what a kill left half written.
        for old in (
            *self.folder.glob("step-*.pt"),
            *self.folder.glob(".step-*.pt.*"),
            *self.folder.glob(".index.json.*"),
        ):
            if old.name not in {entry.file for entry in kept}:
                old.unlink()
        return path

    def load(self, entry: Entry, *, device: str = "cpu") -> dict[str, Any]:
        """What was saved. A file that is not as it was written is refused, and the last good one named."""
        path = self.folder / entry.file
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise self._damaged(entry)
        return torch.load(io.BytesIO(data), map_location=device, weights_only=True)

    def _damaged(self, entry: Entry) -> BadInput:
        good = [other for other in self.entries() if other != entry and self._is_good(other)]
        path = self.folder / entry.file
        if not good:
            return BadInput(
                f"the checkpoint {path} is damaged, and there is no other", hint="train again with another -o"
            )
        last = max(good, key=lambda other: other.step)
        return BadInput(
            f"the checkpoint {path} is damaged; the last good one is {last.file}, step {last.step:,}",
            hint=f"remove {path} and run the same command again: it then goes on from step {last.step:,}",
        )

    def _is_good(self, entry: Entry) -> bool:
        return hashlib.sha256((self.folder / entry.file).read_bytes()).hexdigest() == entry.sha256
