"""Operations that sort on the simulated device, compared with what they requested from an H200's allocator.

The record is benchmarks/results/sort_probe_h200.json, written by benchmarks/accuracy/sort_probe.py with
torch 2.11.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pinchpoint.backends.torch import versions

ROOT = Path(__file__).parents[3]
MIB = 2**20
ROWS: dict[str, list[dict[str, Any]]] = defaultdict(list)
for _row in json.loads((ROOT / "benchmarks/results/sort_probe_h200.json").read_text())["rows"]:
    ROWS[_row["operation"]].append(_row)


@pytest.fixture(scope="module")
def allocations_of(simulate: Any, count: Any) -> Iterator[Callable[[dict[str, Any]], Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "installed", lambda: "2.11.0")
        patch.setattr(sys, "path", [str(ROOT / "benchmarks" / "accuracy"), *sys.path])
        probe = importlib.import_module("sort_probe")
        with simulate(assume=True) as observer:

            def run(row: dict[str, Any]) -> Any:
                x = torch.empty(row["shape"], dtype=getattr(torch, row["type"]), device="cuda")
                if row["operation"].startswith(("unique rows", "unique columns")):
                    x = probe.argument_of(row["type"], row["shape"], "cpu").cuda()  # outputs need the values
                operation = probe.OPERATIONS[row["operation"]]
                return count(observer.ledger.observation, lambda: operation(x))

            yield run


@pytest.mark.slow
@pytest.mark.parametrize("operation", ROWS)
def test_a_sort_takes_what_it_takes_on_an_h200(
    allocations_of: Callable[[dict[str, Any]], Any], operation: str
) -> None:
    """To 8 KiB; blocks of more than 1 MiB may be up to 1 MiB larger than requested."""
    wrong = []
    for row in ROWS[operation]:
        allocations, peak, kept = allocations_of(row), row["peak_bytes"], row["kept_bytes"]
        spans = [block.span for block in allocations.blocks if block.span is not None]
        high = allocations.peak + sum(span.most - span.usual for span in spans)
        large = sum(size > MIB for size in row["requests"])
        least, most = 0.998 * (peak - 8192 - large * MIB), 1.002 * peak + 8192
        kept_alike = abs(allocations.kept_bytes - kept) <= 512 + large * MIB
        if not (least <= high and allocations.peak <= most and kept_alike):
            wrong.append(
                f"{row['type']} {row['shape']}: {allocations.peak:,} B, measured {peak:,} B; "
                f"keeps {allocations.kept_bytes:,} B, measured {kept:,} B"
            )
    assert not wrong


def test_the_large_blocks_of_a_sort_are_exact(allocations_of: Callable[[dict[str, Any]], Any]) -> None:
    """But for a second sort, of less, after the first has ended."""
    for row in ROWS["sort"] + ROWS["sort of columns"] + ROWS["sort of every second"]:
        requests = Counter(size for size in row["requests"] if size > MIB)
        sizes = Counter(block.bytes for block in allocations_of(row).blocks if block.bytes > MIB)
        assert not sizes - requests and (requests - sizes).total() <= (len(row["shape"]) > 1), row


def test_rows_of_negative_dimensions_are_those_of_positive_ones(simulate: Any) -> None:
    with simulate():
        x = torch.tensor([[1, 1, 2], [3, 3, 4]]).cuda()
        for unique in (torch.unique, torch.unique_consecutive):
            values, inverse, counts = unique(x, dim=-1, return_inverse=True, return_counts=True)
            assert values.shape == (2, 2) and inverse.shape == (3,) and counts.shape == (2,)


def test_only_repeatable_writes_are_sorted(simulate: Any, count: Any) -> None:
    """Masks that are filled with a number never are; under `use_deterministic_algorithms` others are."""
    with simulate(assume=True) as observer:
        x = torch.randn(1_000_000, device="cuda")
        mask, index = x > 0, torch.arange(500_000, device="cuda")
        values = torch.ones(500_000, device="cuda")

        def peaks() -> list[int]:
            writes = (lambda: x.index_put_((mask,), x.new_zeros(())), lambda: x.index_put_((index,), values))
            return [count(observer.ledger.observation, write).peak for write in writes]

        usual = peaks()
        torch.use_deterministic_algorithms(True)
        try:
            repeatable = peaks()
        finally:
            torch.use_deterministic_algorithms(False)
        assert max(usual) < 1024 and repeatable[0] == usual[0] and repeatable[1] > 40 * 500_000
