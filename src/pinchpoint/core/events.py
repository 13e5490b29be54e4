"""What a fake run observed: every block with its origin, and the order of allocations and frees.

Plain data, so that it crosses a process boundary and needs no framework to be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Phase = Literal["data", "forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "optimizer")
FREE_CACHE = -1  # an event with this block number is torch.cuda.empty_cache()
PRIVATE_POOL = -1  # the stream of blocks in the memory pool of CUDA graphs


class Span(NamedTuple):
    """Bytes that a library chooses at run time: the usual number, the least and the most."""

    usual: int
    least: int
    most: int


@dataclass(slots=True)
class BlockInfo:
    """One allocation on the device.

    role: weights, gradients, optimizer, workspace or temporaries. It is set for what outlives a step and for
    what is not a tensor of the user; an empty role is derived from the block's lifetime.
    span: for the workspace of a library, whose size is uncertain; `bytes` is then the usual size.
    library_file, library_line: the line of a package that `file` and `line` lead to, if it is not the user's.
    stream: the CUDA stream that it was allocated on; 0 is the default one, PRIVATE_POOL the memory pool of
    CUDA graphs. Others do not use its memory.
    held_bytes: memory that is in use but not allocated for torch's counters: that of a freed tensor which
    another stream may use (`bytes` is then 0), or of a replayed CUDA graph.
    """

    bytes: int
    phase: Phase
    file: str
    line: int
    module: str = ""
    op: str = ""
    role: str = ""
    span: Span | None = None
    library_file: str = ""
    library_line: int = 0
    stream: int = 0
    held_bytes: int = 0


@dataclass
class Observation:
    """Events in order: block number k is allocated the first time `k` appears and freed the second.

    marks: event index -> phase that starts there, for the timeline.
    trained: whether there was a backward pass or an optimizer step.
    counts: dimensions of the device tensors that steps created, without the data.
    reasons: why the peak may be higher than observed by an unknown amount.
    seen: what of the run was observed, as in a Forecast.
    step_ends: optimizer -> number of events after each of its steps.
    searches: (number of events before, bytes that a library uses to search for its fastest kernel).
    """

    blocks: list[BlockInfo] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[tuple[int, Phase]] = field(default_factory=list)
    steps: int = 0
    trained: bool = False
    counts: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    seen: dict[str, Any] = field(default_factory=dict)
    step_ends: dict[int, list[int]] = field(default_factory=dict)
    searches: list[tuple[int, int]] = field(default_factory=list)
