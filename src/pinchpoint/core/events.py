"""What a fake run observed: blocks with where they came from, and the order they came and went.

Plain data, so that it crosses a process boundary and needs no framework to be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Phase = Literal["data", "forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "optimizer")
FREE_CACHE = -1  # an event with this block number is torch.cuda.empty_cache()


class Span(NamedTuple):
    """Bytes a library chooses at run time: what it usually takes, and the least and the most it may."""

    usual: int
    least: int
    most: int


@dataclass(slots=True)
class BlockInfo:
    """One allocation on the device. `role` is set for what outlives a step or is no tensor of the user's.

    span: for a library's workspace, whose size is not known for certain; `bytes` is then its usual one.
    """

    bytes: int
    phase: Phase
    file: str
    line: int
    module: str = ""
    op: str = ""
    role: str = (
        ""  # weights | gradients | optimizer | workspace | temporaries, or "" to be told from its life
    )
    span: Span | None = None


@dataclass
class Observation:
    """Events in order: block number k is allocated the first time `k` appears and freed the second.

    marks: event index -> phase entered there, for the timeline.
    """

    blocks: list[BlockInfo] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[tuple[int, Phase]] = field(default_factory=list)
    steps: int = 0
    trained: bool = False  # a backward pass or an optimizer step was seen
    counts: set[int] = field(
        default_factory=set
    )  # dimensions of the device tensors that steps made, data left out
    notes: list[str] = field(default_factory=list)
