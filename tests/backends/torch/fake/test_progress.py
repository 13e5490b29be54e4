"""When a script has been followed far enough, and whether its memory still grew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pinchpoint.backends.torch.fake.progress import CALLS_OPERATIONS, Progress
from pinchpoint.backends.torch.ledger import Ledger
from pinchpoint.core.events import BlockInfo


def started() -> tuple[Progress, Any]:
    progress = Progress()
    progress.observer = SimpleNamespace(ledger=Ledger(), operations=0)
    progress.loops = SimpleNamespace(drive=lambda: False, left_after=lambda frame: None)
    progress.loaders = SimpleNamespace(trains=False, after_step=lambda: None)
    return progress, progress.observer


def call(progress: Progress, observer: Any, *, keep: bool) -> None:
    block = observer.ledger._append(BlockInfo(4096, "forward", "a.py", 1))
    if not keep:
        observer.ledger.free_temporary(block)
    observer.operations += 10
    progress.count_call(None, quiet=True)


def test_inference_is_followed_until_its_operations_are_spent() -> None:
    progress, observer = started()
    for _ in range(5):
        call(progress, observer, keep=False)
        assert not progress.is_followed(2)
    observer.operations += CALLS_OPERATIONS
    assert progress.is_followed(2)


def test_training_ends_with_its_last_optimizer_step() -> None:
    progress, _ = started()
    progress.steps = {1: 1}
    assert not progress.is_followed(2)
    progress.steps = {1: 2}
    assert progress.is_followed(2)


def test_calls_before_the_first_optimizer_are_not_enough_to_be_late() -> None:
    progress, observer = started()
    for _ in range(3):  # as a library does that builds a model
        call(progress, observer, keep=False)
    assert not progress.is_followed(2) and progress.is_late
    progress.add_optimizer(SimpleNamespace())  # type: ignore[arg-type]
    assert not progress.is_late


def test_calls_that_keep_more_each_time_grow_although_the_first_had_the_peak() -> None:
    progress, observer = started()
    observer.ledger.free_temporary(observer.ledger._append(BlockInfo(10**9, "forward", "a.py", 1)))
    for _ in range(3):
        call(progress, observer, keep=True)
    assert progress.grows()


def test_calls_grow_if_the_last_ones_reach_a_new_peak() -> None:
    for keep in (True, False):
        progress, observer = started()
        for _ in range(9):
            call(progress, observer, keep=keep)
        assert progress.grows() is keep


def test_a_long_run_says_what_it_is_doing() -> None:
    progress, observer = started()
    call(progress, observer, keep=False)
    assert progress.describe(2) == "running the script: 1 module call so far"
    progress.steps = {1: 1}
    progress.calls = 1240
    assert progress.describe(2) == "running the script: 1,240 module calls, before optimizer step 2 of 2"
