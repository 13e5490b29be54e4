"""Steps of processes that train together: the first takes them and says when there are no more, the others follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pinchpoint.core.errors import TargetFailed
from pinchpoint.systems.common.distributed import ENDED, FAILED, NEXT, Ranks
from pinchpoint.systems.common.precision import matmuls
from pinchpoint.systems.common.stopping import stop_between_steps

Made = TypeVar("Made")


def lead(ranks: Ranks, take_steps: Callable[[], Made]) -> Made:
    """Take the steps, and say to the processes that follow when there are no more."""
    word = FAILED
    try:
        made = take_steps()
        word = ENDED
    except (KeyboardInterrupt, SystemExit):
        word = ENDED
        raise
    finally:
        ranks.agreed(word)
    return made


def follow(
    run: Any, ranks: Ranks, *, restore: Callable[[dict[str, Any]], None], take: Callable[[int], object]
) -> str:
    """Take the steps the first process takes, from the run's last checkpoint on; the text of the record it wrote.

    run: of `training.runs`; take: step 1, 2, ... of this process.
    """
    state = run.resumed_state()
    if state is not None:
        restore(state)
    number = 0 if state is None else state["step"]
    with matmuls(run.settings.precision), stop_between_steps():  # signals are the first process's to act on
        while (word := ranks.agreed()) == NEXT:
            number += 1
            take(number)
    path: Path = run.folder / "record.json"
    if word == FAILED or not path.exists():
        raise TargetFailed("the first process failed", hint="see what it says")
    return path.read_text(encoding="utf-8")
