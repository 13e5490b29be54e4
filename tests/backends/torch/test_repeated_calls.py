"""Inference calls that are copied allocate what the same calls allocate when they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pinchpoint.backends.torch.repeated_calls import RepeatedCalls


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
        self.kept: list[Any] = []
        self.runs = 0

    def forward(self, x: Any, keep: str = "") -> Any:
        self.runs += 1
        hidden = torch.relu(self.first(x))
        if keep:
            self.kept.append(hidden.detach() if keep == "alias" else hidden)
        return self.last(hidden), {"hidden": hidden[:, 1:] if keep == "base" else hidden}


def events_of(simulate: Any, *, copy: bool, **how: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        if not copy:
            patch.setattr(RepeatedCalls, "_key", lambda *_: None)
        with simulate() as observer:
            block = Block().cuda()
            with torch.no_grad():
                for call in range(12):
                    x = torch.zeros(3, 100 + call // 6, 64, device="cuda")
                    out, extra = block(x, **how)
                    assert out.shape == (3, 100 + call // 6, 64)
                    assert out.is_cuda and extra["hidden"].shape[-1] == 256
                    out = out * 2
            observation = observer.ledger.observation
            sizes = [info.bytes for info in observation.blocks]
            return sizes, list(observation.events), block.runs


def test_copied_calls_allocate_what_calls_that_run_allocate(simulate: Any) -> None:
    *real, runs = events_of(simulate, copy=False)
    *copied, fewer = events_of(simulate, copy=True)
    assert copied == real
    assert runs == 12
    assert fewer <= 6  # at most three of each of the two sizes: the first may allocate a workspace


@pytest.mark.parametrize("keep", ["output", "alias", "base"])
def test_a_module_that_keeps_a_tensor_is_never_copied(simulate: Any, keep: str) -> None:
    *real, _ = events_of(simulate, copy=False, keep=keep)
    *copied, runs = events_of(simulate, copy=True, keep=keep)
    assert copied == real
    assert runs == 12
