"""Checkpoints of a run: named arrays in an npz and a JSON beside it, whole or absent, hashed, the last two kept.

The JSON is written last and removed first: where it stands, its arrays do too, whatever instant a run was killed at. Its
hash is over the arrays and over itself. Nothing is pickled and nothing that is pickled is read. Arrays lie here whole, however
many devices they were spread over, so that another number of devices may take them up.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import make_folder, write_bytes, write_text

KEPT = 2
FORMAT = 2  # 1: the optimizer's arrays were trees like the parameters
_HASH = "sha256"


@dataclass(frozen=True)
class Checkpoint:
    """What was saved. arrays: by name; told: what the run was told and what else is plain."""

    step: int
    arrays: dict[str, np.ndarray] = field(repr=False)
    told: dict[str, Any]
    format: int = FORMAT


class Checkpoints:
    """The checkpoints in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """Steps of which there is a checkpoint, the first first."""
        found = (path for path in self.folder.glob("step-*.json") if path.with_suffix(".npz").is_file())
        return sorted(int(path.stem.removeprefix("step-")) for path in found)

    def last(self) -> int | None:
        return max(self.steps(), default=None)

    def name(self, step: int) -> str:
        return f"step-{step:08d}.npz"

    def save(self, step: int, arrays: Mapping[str, np.ndarray], told: Mapping[str, Any]) -> Path:
        """Write one more and remove all but the last two; those of later steps too, since they are of another run."""
        make_folder(self.folder)
        buffer = io.BytesIO()
        named: dict[str, Any] = dict(arrays)
        np.savez(buffer, **named)
        data = buffer.getvalue()
        body = {"format": FORMAT, "step": step, "told": dict(told)}
        path = write_bytes(self.folder / self.name(step), data)
        write_text(
            path.with_suffix(".json"),
            json.dumps({**body, _HASH: _hash(data, body)}, indent=1, allow_nan=False) + "\n",
        )
        kept = [found for found in self.steps() if found <= step][-KEPT:]
        names = {f"step-{found:08d}" for found in kept}
        # The JSON before its arrays. A dot before a name: what a kill left half written.
        for pattern in ("step-*.json", "step-*.npz", ".step-*"):
            for old in self.folder.glob(pattern):
                if old.stem not in names:
                    old.unlink()
        return path

    def load(self, step: int) -> Checkpoint:
        """What was saved at a step. A file that is not as it was written is refused, and the last good one named."""
        try:
            return self._read(step)
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            raise self._damaged(step) from error

    def _read(self, step: int) -> Checkpoint:
        path = self.folder / self.name(step)
        data = path.read_bytes()
        body = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if body.pop(_HASH) != _hash(data, body):
            raise ValueError("the hash differs")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return Checkpoint(
                body["step"], {name: arrays[name] for name in arrays.files}, body["told"], body["format"]
            )

    def _damaged(self, step: int) -> BadInput:
        path = self.folder / self.name(step)
        good = [other for other in self.steps() if other != step and self._is_good(other)]
        if not good:
            return BadInput(
                f"the checkpoint {path} is damaged, and there is no other", hint="train again with another -o"
            )
        last = self.name(good[-1])
        return BadInput(
            f"the checkpoint {path} is damaged; the last good one is {last}, step {good[-1]:,}",
            hint=f"remove {path} and run the same command again: it then goes on from step {good[-1]:,}",
        )

    def _is_good(self, step: int) -> bool:
        try:
            self._read(step)
        except (OSError, ValueError, KeyError, TypeError, BadZipFile):
            return False
        return True


def _hash(data: bytes, body: Mapping[str, Any]) -> str:
    made = hashlib.sha256(data)
    made.update(json.dumps(body, sort_keys=True).encode("utf-8"))
    return made.hexdigest()
