"""The kernels that gather the inputs of edges copy the numbers that plain torch copies."""

from __future__ import annotations

import pytest
import torch
from tests.kit.edges import triton_runs

from pinchpoint.kit import Edges
from pinchpoint.kit.edges import edge_ops
from pinchpoint.kit.edges.row_chunks import Rows, row_chunks

Q, S, E = 37, 29, 600


@pytest.mark.parametrize("where", triton_runs.WHERE)
@pytest.mark.parametrize(("dims", "channels"), [(3, 0), (2, 5), (3, 48), (20, 33)])
@pytest.mark.parametrize("relative", [False, True])
def test_inputs_are_gathered_from_points_of_any_dtype_and_width(
    dims: int, channels: int, relative: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    rows = torch.randint(0, Q - 5, (E,))  # the last ones have no edges
    edges = Edges.from_index(torch.stack([torch.randint(0, S, (E,)), rows]), queries=Q, sources=S)
    for of_x, of_y, of_f, dtype in (
        (torch.float32, torch.float32, torch.float32, torch.float32),
        (torch.float16, torch.float32, torch.bfloat16, torch.float32),
        (torch.float64, torch.float32, torch.float16, torch.float64),
        (torch.float32, torch.float32, torch.float32, torch.float16),
    ):
        # Rows of different lengths, of which the first columns are taken.
        x, y = torch.randn(Q, dims + 1).to(of_x)[:, :dims], torch.randn(S, dims + 2).to(of_y)[:, :dims]
        f = torch.randn(S, channels + 3).to(of_f)[:, :channels] if channels else None
        parts = list(row_chunks(edges, 250, split_rows=True))
        expected = [edge_ops.gather(x, y, f, part, dtype=dtype, relative=relative) for part in parts]
        with monkeypatch.context() as patch:
            device = triton_runs.use_kernels(patch, where)
            moved = Edges(edges.offsets.to(device), edges.sources.to(device), S)
            points = x.to(device), y.to(device), None if f is None else f.to(device)
            found = [
                edge_ops.gather(*points, part, dtype=dtype, relative=relative)
                for part in row_chunks(moved, 250, split_rows=True)
            ]
        for own, right in zip(found, expected, strict=True):
            assert own[0].dtype is dtype
            for value, same in zip(own, right, strict=True):
                assert (value is None) == (same is None)
                if value is not None and same is not None:
                    assert value.is_floating_point() == same.is_floating_point()
                    assert value.dtype is same.dtype or not same.is_floating_point()  # rows: int32 and int64
                    assert torch.equal(value.cpu().to(same.dtype), same)


@pytest.mark.parametrize("where", triton_runs.WHERE)
@pytest.mark.parametrize("count", [1, 31, 32, 33, 700, 1100, 2000])
def test_every_source_finds_its_edges_among_any_number(
    count: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    few = max(1, min(count, 40))  # no more sources than edges, so that each source searches
    for sources in (torch.randint(0, few, (count,)), torch.full((count,), few - 1)):
        values = torch.randint(-8, 8, (count, 3)).float()  # whole numbers, whose sums are exact
        expected = torch.zeros(few, 3).index_add(0, sources, values)
        with monkeypatch.context() as patch:
            device = triton_runs.use_kernels(patch, where)
            edges = Edges(torch.tensor([0, count]).to(device), sources.int().to(device), few)
            total = torch.zeros(few, 3, device=device)
            edge_ops.add_by_source(total, values.to(device), Rows.all_of(edges))
        assert torch.equal(total.cpu(), expected)
