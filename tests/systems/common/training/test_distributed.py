"""Processes that train together: who is alone, and what the others do if the first one fails."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.systems.common.training import distributed
from pinchpoint.systems.common.training.distributed import FAILED, NEXT, Ranks, join_ranks


class Broadcast:
    """Stands for `torch.distributed.broadcast` of two processes. word: what the first process announces."""

    def __init__(self, word: int | None = None) -> None:
        self.word = word

    def __call__(self, shared: Tensor, source: int) -> None:
        if self.word is None:
            self.word = int(shared)
        shared.fill_(self.word)


def test_a_process_alone_leads_without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_ranks("cpu") as ranks:
        assert ranks == Ranks(0, 1) and ranks.leads
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK"])
def test_a_variable_that_is_not_a_number_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, "-1")
    with pytest.raises(BadInput, match=f"{name} is '-1'"), join_ranks("cpu"):
        pass


def test_a_process_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BadInput, match="Process 1 of this machine has no GPU"), join_ranks("cuda"):
        pass


def test_only_the_first_process_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    Ranks().check_first(lambda: calls.append("alone"))
    first = Broadcast()
    monkeypatch.setattr(distributed.dist, "broadcast", first)
    Ranks(0, 2).check_first(lambda: calls.append("first"))
    assert first.word == NEXT
    Ranks(1, 2).check_first(lambda: calls.append("second"))
    assert calls == ["alone", "first"]


def test_if_the_check_fails_the_other_processes_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Broadcast()
    monkeypatch.setattr(distributed.dist, "broadcast", first)

    def check() -> None:
        raise BadInput("It is a file.", hint="Choose another folder.")

    with pytest.raises(BadInput, match="It is a file"):
        Ranks(0, 2).check_first(check)
    assert first.word == FAILED
    with pytest.raises(TargetFailed, match="The first process failed"):
        Ranks(1, 2).check_first(check)
