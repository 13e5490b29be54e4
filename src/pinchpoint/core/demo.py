"""A system's part of `pinchpoint demo`.

A built-in workload takes part if its folder contains a module `demo.py`. Importing the module must not
import a framework. It defines

    SHOW = Show("density", needs=("torch", "e3nn"), order=10, variant="scalar", verify_size=1_024, ...)

    def draw(output: Path, *, device: str, seed: int) -> Picture: ...

`draw` writes one picture to the folder `output` and deletes what else it writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Show:
    """What `demo` runs for one workload. The parts that run for real must suit one CPU core.

    needs: the packages it imports, its framework first. order: its place in the table, smallest first.
    task: what a step computes, for the table. picture: what the picture shows, for the progress.
    variant: compared with the baseline. verify_s: seconds spent on timing. cost_s: about how long all of it
    takes on one core; the longest is started first.
    sizes: sizes of the study, which may be far too large for this machine; the largest is also predicted.
    """

    workload: str
    needs: tuple[str, ...]
    order: int
    task: str
    picture: str
    variant: str
    verify_size: int
    verify_mode: str = "train"
    verify_s: float = 1.0
    cost_s: float = 10.0
    sizes: tuple[int, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """A picture (PNG or GIF), its title, and a caption that says what made it."""

    path: Path
    title: str
    caption: str
