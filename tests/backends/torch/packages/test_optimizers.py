"""States of bitsandbytes' and apex's optimizers, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

LARGE, SMALL = 300_001, 4_095  # elements; blocks of 256, and fp32 below 4,096


def states(optimizer: Any) -> int:
    return sum(
        t.nbytes
        for state in optimizer.state.values()
        for t in state.values()
        if isinstance(t, torch.Tensor) and t.is_cuda
    )


@pytest.fixture
def optim(observer: Any) -> Any:
    observer.stand_ins.serve(["bitsandbytes"])
    import bitsandbytes.optim  # type: ignore[import-not-found]

    return bitsandbytes.optim


def parameters(dtype: torch.dtype = torch.bfloat16) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros(n, dtype=dtype, device="cuda")) for n in (LARGE, SMALL)]
    for parameter in made:
        parameter.grad = torch.zeros_like(parameter)
    return made


@pytest.mark.parametrize(("name", "count"), [("AdamW8bit", 2), ("Lion8bit", 1), ("AdEMAMix8bit", 3)])
def test_states_of_8_bits_have_a_scale_per_block(optim: Any, name: str, count: int) -> None:
    optimizer = getattr(optim, name)(parameters(), lr=1e-3)
    optimizer.step()
    blocks = 1_172
    assert states(optimizer) == count * (LARGE + blocks * 4 + SMALL * 4)


def test_a_step_allocates_only_the_states(optim: Any, take: Any) -> None:
    optimizer = optim.Adam8bit(parameters(), lr=1e-3)
    first, second = take(optimizer.step), take(optimizer.step)
    assert first.kept_bytes == first.peak > 0 == second.peak
    assert "optimizer" in {block.role for block in first.blocks}


def test_paged_states_are_not_counted_and_noted(optim: Any, observer: Any) -> None:
    optimizer = optim.PagedAdamW8bit(parameters(), lr=1e-3)
    optimizer.step()
    assert states(optimizer) == 2 * (1_172 * 4 + SMALL * 4)
    assert any("unified memory" in note for note in observer.ledger.observation.notes)


def test_a_module_can_be_kept_in_32_bits(optim: Any) -> None:
    table = nn.Embedding(1000, 100, device="cuda")
    table.weight.grad = torch.zeros_like(table.weight)
    manager = optim.GlobalOptimManager.get_instance()
    manager.register_module_override(table, "weight", {"optim_bits": 32})
    optimizer = optim.AdamW(table.parameters(), lr=1e-3, optim_bits=8)
    optimizer.step()
    assert states(optimizer) == 2 * 100_000 * 4


def test_layers_of_4_bits_are_refused_by_name(observer: Any) -> None:
    from pinchpoint.core.errors import CannotFake

    observer.stand_ins.serve(["bitsandbytes"])
    import bitsandbytes  # type: ignore[import-not-found]

    with pytest.raises(CannotFake, match=r"bitsandbytes\.nn\.Linear4bit"):
        bitsandbytes.nn.Linear4bit(8, 8)


def test_apex_keeps_averages_in_fp32_and_two_statistics_per_row(observer: Any, take: Any) -> None:
    observer.stand_ins.serve(["apex"])
    from apex.normalization import FusedLayerNorm, FusedRMSNorm  # type: ignore[import-not-found]
    from apex.optimizers import FusedAdam  # type: ignore[import-not-found]

    optimizer = FusedAdam(parameters())
    optimizer.step()
    assert states(optimizer) == 2 * 4 * (LARGE + SMALL)
    x = torch.randn(4096, 512, device="cuda", requires_grad=True)
    for kind, count in ((FusedLayerNorm, 2), (FusedRMSNorm, 1)):
        layer = kind(512).cuda()
        assert take(lambda layer=layer: layer(x)).kept_bytes == x.nbytes + count * 4096 * 4
