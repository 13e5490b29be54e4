"""A graph is read again only for the very points it was made from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import GraphCache, Lattice, lattice_edges_multi
from pinchpoint.kit.edges import graph_cache
from pinchpoint.kit.edges.graph_cache import graph_key

LATTICE = Lattice((5, 4, 3), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
RADII = [0.3, 0.6]


def cloud(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    return torch.rand(200, 3, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def equal(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.offsets, y.offsets)
        and torch.equal(x.sources, y.sources)
        and x.source_count == y.source_count
        for both, others in zip(a, b, strict=True)
        for x, y in zip(both, others, strict=True)
    )


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each graph that was made rather than read."""
    calls: list[int] = []

    def build(points: Any, lattice: Lattice, radii: Any) -> Any:
        calls.append(len(points))
        return lattice_edges_multi(points, lattice, radii)

    monkeypatch.setattr(graph_cache, "lattice_edges_multi", build)
    return calls


def test_a_graph_is_made_once_and_read_the_same(tmp_path: Path, built: list[int]) -> None:
    first = GraphCache(tmp_path / "a" / "b").lattice_edges(cloud(), LATTICE, RADII)
    again = GraphCache(tmp_path / "a" / "b").lattice_edges(cloud(), LATTICE, RADII)
    assert built == [200]
    assert equal(first, again) and equal(first, lattice_edges_multi(cloud(), LATTICE, RADII))


def test_two_meshes_of_equal_size_never_share_a_graph(tmp_path: Path, built: list[int]) -> None:
    cache = GraphCache(tmp_path)
    one, other = cloud(0), cloud(1)
    moved = one.clone()
    moved[137, 1] += 1e-6  # one coordinate of one point
    for points in (one, other, moved):
        assert equal(cache.lattice_edges(points, LATTICE, RADII), lattice_edges_multi(points, LATTICE, RADII))
    assert len(built) == 3 and len(list(tmp_path.iterdir())) == 3


def test_every_part_of_the_question_is_part_of_its_name() -> None:
    points = cloud()
    asked = [
        (points, LATTICE, RADII),
        (points.double(), LATTICE, RADII),
        (points.reshape(100, 6), LATTICE, RADII),
        (points, Lattice((5, 3, 4), LATTICE.low, LATTICE.high), RADII),
        (points, Lattice(LATTICE.shape, (-0.1, 0.0, 0.0), LATTICE.high), RADII),
        (points, Lattice(LATTICE.shape, LATTICE.low, (1.0, 1.0, 1.0 + 1e-15)), RADII),
        (points, LATTICE, RADII[::-1]),
        (points, LATTICE, RADII[:1]),
    ]
    assert len({graph_key(*question) for question in asked}) == len(asked)
    strided = torch.cat([points, points], dim=1)[:, :3]  # the same values, laid out otherwise
    assert graph_key(strided, LATTICE, RADII) == graph_key(points, LATTICE, tuple(RADII))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_file_is_replaced_with_a_warning(tmp_path: Path, built: list[int], damage: str) -> None:
    cache = GraphCache(tmp_path)
    whole = cache.lattice_edges(cloud(), LATTICE, RADII)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[: len(data) // 3]), "empty": b""}[damage])
    with pytest.warns(UserWarning, match="is damaged; the graph is computed again"):
        assert equal(cache.lattice_edges(cloud(), LATTICE, RADII), whole)
    assert equal(cache.lattice_edges(cloud(), LATTICE, RADII), whole)
    assert len(built) == 2


def test_bad_points_leave_no_file(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path)
    for points in (torch.full((2, 3), float("nan")), torch.zeros(0, 3), torch.rand(3, 2), torch.tensor(1.0)):
        with pytest.raises(BadInput):
            cache.lattice_edges(points, LATTICE, RADII)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be created"):
        GraphCache(tmp_path / "file")


def test_the_least_recently_used_graph_is_removed_first(tmp_path: Path, built: list[int]) -> None:
    plain = GraphCache(tmp_path)
    for seed in (0, 1):
        plain.lattice_edges(cloud(seed), LATTICE, RADII)
    names = [tmp_path / f"{graph_key(cloud(seed), LATTICE, RADII)}.edges" for seed in range(3)]
    for age, path in enumerate(names[:2]):
        os.utime(path, (1000 + age, 1000 + age))
    plain.lattice_edges(cloud(0), LATTICE, RADII)  # used again: now the other is the older
    size = max(path.stat().st_size for path in names[:2])
    GraphCache(tmp_path, most_bytes=int(2.5 * size)).lattice_edges(cloud(2), LATTICE, RADII)
    assert [path.exists() for path in names] == [True, False, True]
    GraphCache(tmp_path, most_bytes=1).lattice_edges(cloud(1), LATTICE, RADII)
    assert [path.exists() for path in names] == [False, True, False]  # the newest stays in any case
    assert len(built) == 4


def test_a_graph_that_another_process_removes_meanwhile_is_no_matter(
    tmp_path: Path, built: list[int]
) -> None:
    (tmp_path / "gone.edges").symlink_to(tmp_path / "nothing")  # listed, but not there when it is looked at
    cache = GraphCache(tmp_path, most_bytes=1)
    assert equal(cache.lattice_edges(cloud(), LATTICE, RADII), lattice_edges_multi(cloud(), LATTICE, RADII))
    assert built == [200]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_made_on_the_cpu_is_read_on_the_gpu(tmp_path: Path, built: list[int]) -> None:
    cache = GraphCache(tmp_path)
    cache.lattice_edges(cloud(), LATTICE, RADII)
    ((into_tokens, into_points), _) = cache.lattice_edges(cloud().cuda(), LATTICE, RADII)
    assert into_tokens.sources.is_cuda and into_points.offsets.is_cuda and len(built) == 1
