"""Lines of adaptive solvers whose answer is known: which way they usually go, and which loops they repeat.

The package itself runs, without a stand-in. A line is known by a part of its file and of its text, so that a
later version with another text is treated like any other code.
"""

from __future__ import annotations

import linecache
from functools import cache

_TORCHDIFFEQ = "torchdiffeq/_impl/"
_HQQ = "hqq/core/optimize.py"
# The usual answer to a question about values only. Other answers allocate a few numbers more or less, and a
# step that is rejected keeps less than an accepted one.
_ANSWERS = {
    (_TORCHDIFFEQ, "d0 < 1e-5 or d1 < 1e-5"): False,
    (_TORCHDIFFEQ, "d1 <= 1e-15 and d2 <= 1e-15"): False,
    (_TORCHDIFFEQ, "if error_ratio == 0:"): False,
    (_TORCHDIFFEQ, "if error_ratio < 1:"): True,
    (_TORCHDIFFEQ, "if dt > self.max_step:"): False,
    (_TORCHDIFFEQ, "if dt <= self.min_step:"): False,
    (_TORCHDIFFEQ, "if accept_step:"): True,
    # All turns of a search for zero points, which ends early if it no longer improves; the first always does.
    (_HQQ, "if current_error < best_error:"): True,
    (_HQQ, "if best_error - current_error > tol:"): True,
}
# Loops over the steps between two times. Fewer turns need less memory, so only their number matters.
_LOOPS = ((_TORCHDIFFEQ, "while next_t > self.rk_state.t1:"),)


@cache
def known_answer(file: str, line: str) -> bool | None:
    """The answer to a line of a known solver, if this is one."""
    return next((answer for key, answer in _ANSWERS.items() if _is_line(file, line, *key)), None)


@cache
def is_known_loop(file: str, line: str) -> bool:
    return any(_is_line(file, line, *key) for key in _LOOPS)


def _is_line(file: str, line: str, part: str, text: str) -> bool:
    return part in file and text in linecache.getline(file, int(line))
