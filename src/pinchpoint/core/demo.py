"""A workload's part of `pinchpoint demo`.

A built-in workload takes part by a module `demo.py` in its folder. The module must import no framework
when it is imported, and defines

    SHOW = Show("field", needs=("torch",), order=10, verify_size=32_768, ...)

and, where there is more to show than a forecast, a study and a verdict,

    def show(output: Path, *, device: str, tell: Callable[[str], None]) -> bool: ...

which is called after the records are printed. It writes to a folder of its own below `output`, tells each
stage, prints its results with `pinchpoint.console.printing`, and returns whether everything passed.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Show:
    """What `demo` runs for one workload. What runs for real is small enough for two CPU cores.

    needs: the packages it imports, its framework first. order: its place in the demo, smallest first.
    sizes: sizes of the study; the largest is also predicted. Both may be far beyond this machine. Without
    sizes, neither is done. verify_s: seconds of timing.
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
