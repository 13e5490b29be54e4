"""A workload's part of `pinchpoint demo`.

A built-in workload takes part if its folder contains a module `demo.py`. Importing the module must not
import a framework. It defines

    SHOW = Show("field", needs=("torch",), order=10, verify_size=32_768, ...)

and, where there is more to show than a forecast, a study and a verdict,

    def show(output: Path, *, device: str, tell: Callable[[str], None]) -> bool: ...

which is called after the records are printed. It writes to its own folder below `output`, calls `tell` at
each stage, prints its results with `pinchpoint.console.printing`, and returns whether everything passed.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Show:
    """What `demo` runs for one workload. The parts that run for real must suit two CPU cores.

    needs: the packages it imports, its framework first. order: its place in the demo, smallest first.
    sizes: sizes of the study; the largest is also predicted. They may be far too large for this machine.
    Without sizes, there is neither a forecast nor a study. verify_s: seconds spent on timing.
    """

    workload: str
    needs: tuple[str, ...]
    order: int
    verify_size: int
    verify_mode: str = "train"
    verify_s: float = 5.0
    sizes: tuple[int, ...] = ()
    modes: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
