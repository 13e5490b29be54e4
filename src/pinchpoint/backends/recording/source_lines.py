"""`SourceLines`: the line of the user's own code that led to a call, found by a cheap walk up the stack."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

_PACKAGE = str(Path(__file__).parents[2])  # as in the names of code, so links are not resolved
_TARGETS = (f"{_PACKAGE}/workloads/", f"{_PACKAGE}/systems/")  # these count as the user's code
_STDLIB = tuple({f"{sysconfig.get_paths()[name]}/" for name in ("stdlib", "platstdlib")})
_GENERATED = ("/torchinductor_", "_pyg/")  # code that torch.compile and PyG write to temporary folders

VALIDATION = "in the validation of torch.distributions"  # where a library waits for a line of the user
Place = tuple[CodeType, int]  # a code object and an offset in it; lines are looked up at the end


def is_user_file(file: str) -> bool:
    """Whether a file is the user's own code, and not of pinchpoint, Python, a package, or generated."""
    if file.startswith(("<", _PACKAGE)):
        return file.startswith(("<ipython-input", *_TARGETS))
    if any(part in file for part in _GENERATED):
        return False
    return not ("site-packages" in file or "dist-packages" in file or file.startswith(_STDLIB))


def is_user_module(file: str) -> bool:
    """Whether a module is the user's own, and not in a folder of packages, as of `pip install --target`."""
    folders = (entry for entry in map(os.path.abspath, sys.path) if file.startswith(os.path.join(entry, "")))
    return is_user_file(file) and not any(map(_holds_packages, folders))


@cache
def _holds_packages(folder: str) -> bool:
    return os.path.isdir(folder) and any(name.endswith(".dist-info") for name in os.listdir(folder))


class SourceLines:
    """Finds the innermost frame of the user's code; each code object is classified once."""

    def __init__(self) -> None:
        self._is_user: dict[CodeType, bool] = {}
        self._places: dict[Place, Place] = {}
        self._by_line: dict[tuple[CodeType, int], Place] = {}

    def frame(self, depth: int = 1) -> FrameType | None:
        """The innermost user frame, from `depth` frames above the caller on."""
        known = self._is_user
        frame: FrameType | None = sys._getframe(depth + 1)
        while frame is not None:
            code = frame.f_code
            user = known.get(code)
            if user is None:
                user = known[code] = is_user_file(code.co_filename)
            if user:
                return frame
            frame = frame.f_back
        return None

    def place(self, depth: int = 1) -> Place | None:
        frame = self.frame(depth + 1)
        return None if frame is None else self.place_of(frame)

    def place_of(self, frame: FrameType) -> Place:
        """The same for every call at a line, which may have several offsets: Python 3.11 changes them."""
        place = frame.f_code, frame.f_lasti
        known = self._places.get(place)
        if known is None:
            line = frame.f_lineno or 0
            known = self._places[place] = self._by_line.setdefault((frame.f_code, line), place)
        return known


def library_calls(depth: int = 1) -> str:
    """`in gcn_norm > add_self_loops of torch_geometric`: a library's calls from the user's line to here.

    Empty if the user's own line calls, or a function of torch itself other than a distribution.
    """
    names: list[str] = []
    package = validation = ""
    frame: FrameType | None = sys._getframe(depth + 1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        top = file.rpartition("-packages/")[2].partition("/")[0] if "-packages/" in file else ""
        if top == "torch" and "/distributions/" in file:
            validation = VALIDATION
        if top not in ("", "torch", "pinchpoint") and name != "forward" and name[0] not in "_<":
            names.append(name)
            package = package or top
        frame = frame.f_back
    if frame is None:
        return ""
    return f"in {' > '.join(reversed(names[:3]))} of {package}" if names else validation


def line_of(place: Place | None) -> tuple[str, int, str]:
    """File, line and source text of a place; empty if no line of the user led to the call."""
    if place is None:
        return "", 0, ""
    code, offset = place
    number = code.co_firstlineno
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            number = line
            break
    return code.co_filename, number, linecache.getline(code.co_filename, number).strip()
