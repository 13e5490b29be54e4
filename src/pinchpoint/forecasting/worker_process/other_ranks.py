"""`OtherRanks`: what a script needs from the other processes of its parallel job before it can be run.

That is an object that another rank sends, which a run as that rank gives, and the size of the job that a
Trainer of Lightning asks for, if the user gave none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pinchpoint.backends.sandbox.script_errors import lightning_job
from pinchpoint.core.ranks import make_rank

OBJECTS = "objects"  # key of an answer: what this rank sent
_NEEDS_OBJECTS = "needs_objects"  # key of an answer: the rank that sends them
_NEEDS_JOB = "needs_job"  # key of an answer: the process of the job that the script asks for


class OtherRanks:
    """Collects what the runs of one script turn out to need."""

    def __init__(self) -> None:
        self._objects: dict[str, list[str]] = {}  # by rank
        self._job: dict[str, int] | None = None

    def run(self, run: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Run the script, and again with what it needs. run: gets what to change in the request."""
        while True:
            answer = run(self._changes(None))
            if _NEEDS_JOB in answer:
                self._job = answer[_NEEDS_JOB]
            elif _NEEDS_OBJECTS in answer:
                rank = answer[_NEEDS_OBJECTS]
                self._objects[str(rank["rank"])] = run(self._changes(rank)).get(OBJECTS, [])
            else:
                return answer

    def _changes(self, rank: dict[str, int] | None) -> dict[str, Any]:
        job = rank or self._job
        return {"objects": self._objects, **({} if job is None else {"rank": job})}

    def notes(self) -> tuple[str, ...]:
        if self._job is None:
            return ()
        size = self._job["world_size"]
        return (
            f"the Trainer asks for {size} processes, of which the first is predicted (--world-size {size})",
        )


def needs_of(error: BaseException | None, job: dict[str, int] | None) -> dict[str, Any] | None:
    """The answer of a run that ended because it needs something of other ranks. job: that was run."""
    from pinchpoint.backends.torch.ranks.objects import NeedsObjects

    if not job and (lightning := lightning_job(error)) is not None:
        nodes, local = lightning
        return {_NEEDS_JOB: asdict(make_rank(0, nodes * local, local))}
    if job and isinstance(error, NeedsObjects):
        return {_NEEDS_OBJECTS: {**job, "rank": error.rank}}
    return None
