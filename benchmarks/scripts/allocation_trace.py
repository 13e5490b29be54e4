"""The allocations of a program on the GPU, in order, each with the lines that made it.

    {"events": [[action, address, bytes, number of the frame], ...], "frames": ["line < outer line", ...]}

Compare them with the events of a forecast: the first difference tells what is wrong.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

_OUTER = 3  # lines outside torch that are kept of each stack


def start() -> None:
    import torch

    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=2_000_000)


def write(path: Path) -> None:
    import torch

    snapshot = torch.cuda.memory._snapshot()
    numbers: dict[str, int] = {}
    events = []
    for entry in snapshot["device_traces"][0]:
        text = _lines(entry.get("frames", []))
        action = [entry["action"], entry["addr"], entry["size"], numbers.setdefault(text, len(numbers))]
        events.append([*action, entry.get("stream", 0)])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps({"events": events, "frames": list(numbers)}).encode()))


def _lines(frames: list[dict[str, Any]]) -> str:
    """The innermost line, and the nearest lines outside torch."""
    texts = [f"{os.path.basename(frame['filename'])}:{frame['line']} {frame['name']}" for frame in frames]
    outer = [text for text, frame in zip(texts, frames, strict=True) if "/torch/" not in frame["filename"]]
    return " < ".join([*texts[:2], *outer[:_OUTER]])
