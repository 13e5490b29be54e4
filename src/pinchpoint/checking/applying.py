"""`apply_fixes`: make the safe fixes, and compare the times of the script before and after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinchpoint.checking.comparing import Failure, Times, judge
from pinchpoint.core.files import write_bytes
from pinchpoint.core.records import Gain
from pinchpoint.rules.engine.reading import decode
from pinchpoint.rules.scan import scan
from pinchpoint.rules.suggestions import show_diff

# Measures the files as they are against these texts by file.
CompareWith = Callable[[dict[str, str]], Times | Failure]


@dataclass(frozen=True)
class _File:
    path: str
    data: bytes
    mode: int

    def put_back(self) -> None:
        write_bytes(Path(self.path), self.data)
        Path(self.path).chmod(self.mode)


def apply_fixes(files: Sequence[str], compare_with: CompareWith) -> Gain:
    """Fix what is safe in the files, then compare the old texts with the new ones.

    If the script fails with the fixes, but not without them, the fixes are undone.
    """
    before = [_File(file, Path(file).read_bytes(), Path(file).stat().st_mode & 0o7777) for file in files]
    fixed = scan(*files, fix=True, workers=1).fixed
    changed = [file for file in before if Path(file.path).read_bytes() != file.data]
    diff = "".join(
        show_diff(file.path, decode(file.data), decode(Path(file.path).read_bytes()))
        for file in changed
        if not file.path.endswith(".ipynb")
    )
    paths = tuple(file.path for file in changed)

    def gain(**values: Any) -> Gain:
        return Gain(fixed=fixed, files=paths, diff=diff, **values)

    if not changed:
        return gain(verdict="not compared", reason="There is nothing that can be fixed safely.")
    if any(file.path.endswith(".ipynb") for file in changed):
        reason = "The times of a notebook before and after cannot be compared yet."
        return gain(verdict="not compared", reason=reason)
    times = compare_with({file.path: decode(file.data) for file in changed})
    if isinstance(times, Times):
        return gain(**judge(times))
    if times.side == 1:
        for file in changed:
            file.put_back()
        reason = f"With the fixes the script failed, so the files are as before: {times.reason}"
        return gain(verdict="undone", reason=reason)
    if times.side == 0:
        reason = f"The script cannot be run again without the fixes: {times.reason}"
        return gain(verdict="not compared", reason=reason)
    return gain(verdict="not compared", reason=times.reason)
