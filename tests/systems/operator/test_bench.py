"""The cases of `bench operator`: variants and peers compute the same transform."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the operator is torch's")

from pinchpoint.backends.base import backend  # noqa: E402
from pinchpoint.systems.common.bench.cases import Setup  # noqa: E402
from pinchpoint.systems.common.bench.runner import compare  # noqa: E402
from pinchpoint.systems.operator.bench import cases, segment_mean  # noqa: E402


def test_variants_and_peers_have_the_outputs_and_gradients_of_the_baseline() -> None:
    case = cases()[0]
    comparison = compare(case, Setup("cpu", "tiny", 2_000), backend("torch"), repeats=1, limit_s=1.0)
    assert [row.name for row in comparison.rows[:3]] == ["eager", "checkpoint", "flat"]
    for row in comparison.rows:
        assert row.state == "not installed" or (row.agreement is not None and row.agreement.equal), row
    peers = [row for row in comparison.rows if row.role == "peer"]
    assert len(peers) == 3
    floor = comparison.floor
    # Two hidden layers of 8: the first has 6 inputs, which need no gradient.
    assert floor is not None and floor.operations == 2 * 2_000 * (3 * (6 * 8 + 8 * 8 + 8 * 16) - 6 * 8)
    assert floor.seconds is None, "a CPU has no data sheet here"


def test_the_floor_of_a_known_card_has_a_time() -> None:
    setup = Setup("cpu", "tiny", 2_000, gpu="NVIDIA H200")
    floor = cases()[0].build(setup).floor
    assert floor is not None and floor.operations is not None
    assert floor.seconds == pytest.approx(floor.operations / 67e12)


def test_the_vectorised_reduction_is_a_mean_over_rows() -> None:
    src = torch.arange(10.0).reshape(5, 2)
    result = segment_mean(src, torch.tensor([0, 2, 2, 5]), "mean")
    assert result.tolist() == [[1.0, 2.0], [0.0, 0.0], [6.0, 7.0]]
