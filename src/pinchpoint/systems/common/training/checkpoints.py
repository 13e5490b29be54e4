"""Checkpoints of a run: written whole or not at all, hashed; the last two and the best are kept.

`index.json` lists the checkpoints with their hashes. It is written empty before the first checkpoint, and
again after each new checkpoint and before an old one is removed: a run that is killed at any moment finds a
list of checkpoints that exist. Checkpoints without a list are an error. A `Codec` turns
a state into the bytes of one file: `TORCH` for states of torch, `ARRAYS` for named numpy arrays and plain
values. Neither reads pickled objects.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol
from zipfile import BadZipFile, ZipFile

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import json_fault, make_folder, parse_json, write_bytes, write_text

KEPT = 2
INDEX = "index.json"
# What torch, numpy, and the parser of JSON raise for a file of another kind; torch refuses pickled objects.
_FAILURES = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,
    BadZipFile,
    UnpicklingError,
)


class Codec(Protocol):
    """Turns a state into the bytes of one file and back."""

    suffix: str

    def encode(self, state: dict[str, Any]) -> bytes: ...

    def decode(self, data: bytes) -> dict[str, Any]:
        """The state; a ValueError, KeyError or BadZipFile where the bytes do not hold one."""
        ...


class TorchCodec:
    """Tensors and plain values, read with `weights_only`."""

    suffix = ".pt"

    def encode(self, state: dict[str, Any]) -> bytes:
        import torch

        buffer = io.BytesIO()
        torch.save(state, buffer)
        return buffer.getvalue()

    def decode(self, data: bytes) -> dict[str, Any]:
        import torch

        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


class ArrayCodec:
    """Numpy arrays by name under `arrays`, the rest JSON values: an npz file with a member state.json."""

    suffix = ".npz"
    _ARRAYS, _STATE = "arrays", "state.json"

    def encode(self, state: dict[str, Any]) -> bytes:
        import numpy as np

        values = {name: value for name, value in state.items() if name != self._ARRAYS}
        buffer = io.BytesIO()
        np.savez(buffer, **state[self._ARRAYS])
        with ZipFile(buffer, "a") as archive:
            archive.writestr(self._STATE, json.dumps(values, indent=1, allow_nan=False))
        return buffer.getvalue()

    def decode(self, data: bytes) -> dict[str, Any]:
        from pinchpoint.systems.common.data.sample_file import load_npz

        arrays = load_npz(io.BytesIO(data))
        return {**parse_json(arrays.pop(self._STATE)), self._ARRAYS: arrays}


TORCH, ARRAYS = TorchCodec(), ArrayCodec()


@dataclass(frozen=True)
class Entry:
    """One checkpoint. `score`: the validation error, None where it was not measured."""

    file: str
    step: int
    sha256: str
    score: float | None = None


class Checkpoints:
    """The checkpoints in one folder."""

    def __init__(self, folder: Path, codec: Codec = TORCH) -> None:
        self.folder, self.codec = folder, codec

    def entries(self) -> list[Entry]:
        """The checkpoints that the index lists and that exist, oldest first."""
        index = self.folder / INDEX
        if not index.exists():
            if any(self.folder.glob("step-*")):
                raise BadInput(
                    f"{self.folder} holds checkpoints, but their list {INDEX} is missing.",
                    hint=f"Restore {index}, or train again with another -o.",
                )
            return []
        try:
            listed = [_entry(**values) for values in parse_json(index.read_text(encoding="utf-8"))]
        except (ValueError, TypeError) as error:
            raise BadInput(
                f"The list of checkpoints {index} is damaged: {json_fault(error)}.",
                hint="Restore the file, or train again with another -o.",
            ) from error
        return sorted(
            (entry for entry in listed if (self.folder / entry.file).is_file()), key=lambda entry: entry.step
        )

    def last(self) -> Entry | None:
        return max(self.entries(), key=lambda entry: entry.step, default=None)

    def last_step(self) -> int:
        """The step of the last checkpoint; 0 where there is none."""
        last = self.last()
        return 0 if last is None else last.step

    def best(self) -> Entry | None:
        """The checkpoint with the lowest score; the latest of equals."""
        return _best(self.entries())

    def save(self, state: dict[str, Any], *, step: int, score: float | None = None) -> Path:
        """Write one more, and remove those that are neither among the last two nor the best.

        Checkpoints of later steps are removed as well: they belong to a run that was cut back.
        """
        make_folder(self.folder)
        if not self.entries():
            write_text(self.folder / INDEX, "[]\n")
        data = self.codec.encode(state)
        entry = Entry(f"step-{step:08d}{self.codec.suffix}", step, hashlib.sha256(data).hexdigest(), score)
        path = write_bytes(self.folder / entry.file, data)
        entries = [other for other in self.entries() if other.step < step] + [entry]
        best = _best(entries)
        kept = [other for other in entries if other in entries[-KEPT:] or other == best]
        write_text(self.folder / INDEX, json.dumps([asdict(other) for other in kept], indent=1) + "\n")
        # A leading dot marks a file that a kill left half written.
        for pattern in (f"step-*{self.codec.suffix}", f".step-*{self.codec.suffix}.*", f".{INDEX}.*"):
            for old in self.folder.glob(pattern):
                if old.name not in {other.file for other in kept}:
                    old.unlink()
        return path

    def load(self, entry: Entry) -> dict[str, Any]:
        """The saved state.

        A file that changed since it was written is refused; the error names the last good one.
        """
        data = (self.folder / entry.file).read_bytes()
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise self._damaged(entry)
        try:
            state = self.codec.decode(data)
        except _FAILURES as error:
            raise self._damaged(entry) from error
        if not isinstance(state, dict):
            raise self._damaged(entry)
        return state

    def _damaged(self, entry: Entry) -> BadInput:
        good = [other for other in self.entries() if other != entry and self._is_good(other)]
        path = self.folder / entry.file
        if not good:
            return BadInput(
                f"The checkpoint {path} is damaged, and there is no other.",
                hint="Train again with another -o.",
            )
        last = max(good, key=lambda other: other.step)
        return BadInput(
            f"The checkpoint {path} is damaged; the last good one is {last.file}, step {last.step:,}.",
            hint=f"Remove {path} and run the same command again: it then resumes from step {last.step:,}.",
        )

    def _is_good(self, entry: Entry) -> bool:
        return hashlib.sha256((self.folder / entry.file).read_bytes()).hexdigest() == entry.sha256


def _entry(file: Any, step: Any, sha256: Any, score: Any = None) -> Entry:
    """An entry of the list, with values of the right types. Raises ValueError."""
    is_name = isinstance(file, str) and bool(file) and Path(file).name == file
    is_step = type(step) is int and 0 <= step < 2**63
    is_score = score is None or isinstance(score, (int, float))
    if not (is_name and is_step and is_score and isinstance(sha256, str)):
        raise ValueError(f"an entry has the values {(file, step, sha256, score)!r:.100}")
    return Entry(file, step, sha256, score)


def _best(entries: list[Entry]) -> Entry | None:
    scored = [entry for entry in entries if entry.score is not None]
    return min(scored, key=lambda entry: (entry.score, -entry.step), default=None)
