"""Processes that a script starts as the ranks of a job."""

from __future__ import annotations

import multiprocessing
import shlex
from typing import Any

import pytest

from pinchpoint.backends.torch.ranks import spawning


def test_of_the_processes_that_start_a_group_that_of_the_rank_runs_here(
    observer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    ranks: list[int] = []

    def train(rank: int) -> None:  # in a file with the text init_process_group
        ranks.append(rank)

    start = spawning.rank_starter(observer)
    processes = [multiprocessing.Process(target=train, args=(rank,)) for rank in range(3)]
    assert all(start(process) for process in processes) and ranks == [1]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    # Another process, such as one that loads data, is refused.
    assert not start(multiprocessing.Process(target=shlex.quote, args=("data",)))
    assert len(observer.ledger.observation.notes) == 1
