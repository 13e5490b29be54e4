"""The comparison with GINO: its fairness where it can be checked, and inputs that are rejected."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Lattice, lattice_edges
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.config import OperatorConfig

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "operator"
needs_neuralop = pytest.mark.skipif(
    importlib.util.find_spec("neuralop") is None and not (ROOT / "scratch" / "peer" / "neuralop").exists(),
    reason="neuralop is neither installed nor in scratch/peer (benchmarks/operator/README.md)",
)
LATTICE = Lattice((8, 4, 4), (-1.0, -0.6, -0.6), (1.0, 0.6, 0.6))
ABOUT: dict[str, Any] = {"lattice": LATTICE, "radii": (0.25, 0.5), "features": 7, "targets": 1}


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def ball(count: int = 200) -> Sample:
    """Return a ball in the wind, whose pressure has the closed form Cp = 1 - 9/4 sin^2."""
    normals = torch.nn.functional.normalize(
        torch.randn(count, 3, generator=torch.Generator().manual_seed(1)), dim=1
    )
    wind = torch.tensor([[1.0, 0.0, 0.0, 0.3]]).expand(count, 4)
    cp = 1 - 2.25 * (1 - normals[:, :1].square())
    return Sample(
        "ball", normals * 0.5, torch.cat([normals, wind], dim=1), cp, torch.full((count,), math.pi / count)
    )


def part(**changes: Any) -> dict[str, Any]:
    defaults = {
        "what": "operator against GINO",
        "commands": ["a"],
        "created": "now",
        "machines": [{"python": "3", "platform": "x", "versions": {}}],
        "about": {"steps": 10, "loss": "l2", "data": {"train": 2, "test": 1, "panels": 9, "fine": None}},
        "tuning": {},
        "chosen": {},
        "runs": {},
        "times": {},
    }
    return copy.deepcopy(defaults) | changes


def a_run(l1: float, fine: float | None = None) -> dict[str, Any]:
    def errors(value: float) -> dict[str, Any]:
        return {
            "median": dict.fromkeys(("l1", "l2", "l1_by_area"), value),
            "bodies": [{"name": "b", "l1": value}],
        }

    result = {"parameters": 1, "step_s": 1.0, "peak_bytes": None, "test": errors(l1)}
    return result if fine is None else result | {"fine": errors(fine)}


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_vectorised_reduce_computes_sums_and_means_of_rows_including_empty_ones(reduction: str) -> None:
    src = torch.arange(12, dtype=torch.float64).reshape(1, 6, 2).requires_grad_()
    result = load("peer").segment_csr(src, torch.tensor([[0, 2, 2, 5, 6]]), reduction)
    counts = torch.tensor([2.0, 1.0, 3.0, 1.0])[:, None] if reduction == "mean" else 1
    rows = torch.stack([src[0, :2].sum(0), torch.zeros(2), src[0, 2:5].sum(0), src[0, 5]]) / counts
    assert torch.equal(result[0], rows)
    (gradient,) = torch.autograd.grad(result.sum(), src)
    (expected,) = torch.autograd.grad(rows.sum(), src)
    assert torch.allclose(gradient, expected)


@needs_neuralop
@pytest.mark.parametrize(
    "change", [{}, {"decoder": "nonlinear"}, {"weighting": "half_cos", "decoder_radius": "smallest"}]
)
def test_gino_has_the_same_result_with_its_own_reduce_and_search(change: dict[str, str]) -> None:
    peer = load("peer")
    torch.manual_seed(0)
    model = peer.Gino(channels=8, choices=peer.Choices(**change), **ABOUT)
    sample = ball()
    body = model.prepare(sample, normals=sample.features[:, :3])
    with peer.reduce_by("vectorised"):
        ours = model(body)
    search = load("neuralop.layers.neighbor_search").NeighborSearch(
        use_open3d=False, return_norm=bool(model.choices.weighting)
    )
    model.gino.gno_out.neighbor_search = search
    model.gino.gno_in.neighbor_search = load("neuralop.layers.neighbor_search").NeighborSearch(
        use_open3d=False
    )
    with peer.reduce_by("loop"):
        theirs = model(body)
    assert ours.shape == (200, 1)
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.detach().abs().max()))


@needs_neuralop
def test_gino_has_the_requested_number_of_parameters_within_5_percent() -> None:
    peer = load("peer")
    for change in (
        {},
        {"modes": "half"},
        {"modes": "half", "factorization": "tucker"},
        {"query_features": 44},
    ):
        model = peer.gino_of_size(600_000, choices=peer.Choices(**change), **ABOUT)
        parameters = (
            sum(p.numel() * p.element_size() for p in model.parameters()) / 4
        )  # bytes: a complex number has eight
        assert abs(parameters / 600_000 - 1) <= 0.05
    with pytest.raises(peer.NoSuchSize, match="nearest GINO"):
        peer.gino_of_size(10_000, choices=peer.Choices(), **ABOUT)


@needs_neuralop
def test_gino_with_the_query_reads_the_query_features_of_ours_and_plain_gino_does_not() -> None:
    contenders, peer = load("contenders"), load("peer")
    low, high = LATTICE.low, LATTICE.high
    config = OperatorConfig.preset(
        "small",
        low=low,
        high=high,
        in_features=7,
        vectors=(0, 3),
        turning=True,
        lattice=LATTICE.shape,
        radii=(0.25, 0.5),
    )
    sample = ball()
    problem = contenders.Problem(config, contenders.scales_of([sample], vectors=(0, 3)))
    ours = contenders.Operator(config)
    queries = []
    for name in ("gino", "gino+query"):
        model = problem.build(name, seed=0, choices=peer.Choices())
        assert abs(peer.parameter_count(model) / problem.parameters() - 1) <= 0.05
        body = model.prepare(sample)
        with peer.reduce_by("vectorised"):
            assert model(body).shape == (200, 1)
        queries.append(body.query)
    assert queries[0] is None
    inputs_read: list[torch.Tensor] = []
    ours.lift.register_forward_pre_hook(lambda _, inputs: inputs_read.append(inputs[0]))
    ours(
        sample.points,
        sample.features,
        sample.areas,
        contenders.Ours(config, memory="eager").prepare(sample)[1],
    )
    assert torch.equal(queries[1][0], inputs_read[0])


@needs_neuralop
def test_gino_rejects_the_graph_of_another_body() -> None:
    peer = load("peer")
    search = peer.FixedNeighbours()
    search.neighbours = peer.as_neighbours(lattice_edges(ball().points, LATTICE, 0.5)[1])
    with pytest.raises(AssertionError, match="another body"):
        search(LATTICE.points(), ball(150).points, 0.5)


def test_the_signed_distance_of_a_ball_is_the_distance_from_its_centre_minus_the_radius() -> None:
    sample = ball(4000)
    tokens = LATTICE.points()
    result = load("peer").signed_distance(tokens, sample.points, sample.features[:, :3])
    assert torch.allclose(result, tokens.norm(dim=1) - 0.5, atol=0.03)


def test_both_models_see_the_bodies_in_the_same_order_and_equally_often() -> None:
    training = load("training")
    order = training.bodies_in_order(5, training.Schedule(steps=20, lr=1.0, seed=3))
    assert order == training.bodies_in_order(5, training.Schedule(steps=20, lr=9.0, seed=3))
    assert [order.count(number) for number in range(5)] == [4] * 5
    assert order != training.bodies_in_order(5, training.Schedule(steps=20, lr=1.0, seed=4))


def test_the_learning_rate_rises_to_its_maximum_and_ends_at_a_hundredth_of_it() -> None:
    schedule = load("training").Schedule(steps=1000, lr=1.0)
    rates = [schedule.rate(step) for step in range(1001)]
    assert max(rates) == rates[49] == 1.0
    assert rates[1000] == pytest.approx(0.01)
    assert rates[525] == pytest.approx(0.505, abs=1e-3)


def test_training_fits_a_constant_and_judge_returns_plain_and_weighted_errors() -> None:
    training = load("training")

    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = torch.nn.Parameter(torch.zeros(1))

        def prepare(self, sample: Sample) -> int:
            return len(sample.points)

        def forward(self, body: int) -> torch.Tensor:
            return self.value.expand(body, 1)

    sample = Sample(
        "two", torch.zeros(2, 3), torch.zeros(2, 7), torch.tensor([[1.0], [3.0]]), torch.tensor([3.0, 1.0])
    )
    model = Constant()
    bodies = training.prepare(model, [sample], torch.device("cpu"))
    training.train(model, bodies, training.Schedule(steps=150, lr=0.2, weight_decay=0.0))
    assert model.value.item() == pytest.approx(2.0, abs=0.02)  # the mean minimises the squares
    model.value.data.fill_(2.0)
    result = training.judge(model, bodies)["median"]
    assert result["l1"] == pytest.approx(2 / 4)
    assert result["l2"] == pytest.approx(math.sqrt(2 / 10))
    assert result["l1_by_area"] == pytest.approx((3 + 1) / (3 + 3))


class Bent(torch.nn.Module):
    """A small network on the features, for which the states of AdamW and of the schedule matter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(torch.nn.Linear(7, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def prepare(self, sample: Sample) -> torch.Tensor:
        return sample.features

    def forward(self, body: torch.Tensor) -> torch.Tensor:
        return self.network(body)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state with a function among the tensors, as GINO's state has."""
        return {**super().state_dict(*args, **kwargs), "_metadata": {"activation": torch.nn.functional.gelu}}


def test_a_suspended_training_resumes_bit_for_bit(tmp_path: Path) -> None:
    training, states = load("training"), load("states")
    schedule = training.Schedule(steps=60, lr=0.01, seed=1)
    bodies = training.prepare(Bent(), [ball(40), ball(50), ball(60)], torch.device("cpu"))
    uninterrupted = Bent()
    losses = training.train(uninterrupted, bodies, schedule)["losses"]
    now = iter(range(1000))  # a clock that advances at every reading
    saved_states = states.States(
        tmp_path / "part.json", about={"steps": 60}, end=3, clock=lambda: float(next(now))
    )
    suspended = Bent()
    with pytest.raises(states.Late, match="ours:0"):
        training.train(suspended, bodies, schedule, states=saved_states, what="ours:0")
    suspended_weight, weight = (
        model.get_parameter("network.0.weight") for model in (suspended, uninterrupted)
    )
    assert not torch.equal(suspended_weight, weight)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("part.ours-0-") and file.suffix == ".state"
    resumed_states = states.States(tmp_path / "other.json", [tmp_path / "part.json"], about={"steps": 60})
    resumed = Bent()
    result = training.train(resumed, bodies, schedule, states=resumed_states, what="ours:0")
    assert result["losses"] == losses
    assert all(
        torch.equal(a, b) for a, b in zip(resumed.parameters(), uninterrupted.parameters(), strict=True)
    )
    saved_states.remove("ours:0")
    assert not list(tmp_path.iterdir())


def test_states_are_saved_regularly_and_only_resumed_within_the_same_comparison(
    tmp_path: Path,
) -> None:
    training, states = load("training"), load("states")
    bodies = training.prepare(Bent(), [ball(40)], torch.device("cpu"))
    seconds = iter(range(0, 100_000, 45))
    saved_states = states.States(tmp_path / "part.json", about=1, clock=lambda: float(next(seconds)))
    training.train(
        Bent(), bodies, training.Schedule(steps=50, lr=0.01), states=saved_states, what="gino lr=0.001"
    )
    assert states.States(tmp_path / "part.json", about=1).read("gino lr=0.001")["step"] == 40
    assert states.States(tmp_path / "part.json", about=1).read("gino lr=0.003") is None
    with pytest.raises(BadInput, match="another comparison"):
        states.States(tmp_path / "part.json", about=2).read("gino lr=0.001")


def test_parts_of_different_comparisons_are_not_merged() -> None:
    parts = load("parts")
    with pytest.raises(BadInput, match="steps is 10 in one and 20"):
        parts.merge(part(), part(about=part()["about"] | {"steps": 20}))
    with pytest.raises(BadInput, match="tuned separately"):
        parts.merge(part(chosen={"ours": {"lr": 1}}), part(chosen={"ours": {"lr": 2}}))


def test_merging_keeps_every_run_and_the_first_of_two_equal_ones() -> None:
    first = part(runs={"ours:0": a_run(0.1)}, commands=["a"])
    second = part(
        runs={"ours:0": a_run(0.9), "gino:0": a_run(0.2)}, commands=["b"], chosen={"ours": {"lr": 1}}
    )
    result = load("parts").merge(first, second)
    assert {key: run["test"]["median"]["l1"] for key, run in result["runs"].items()} == {
        "ours:0": 0.1,
        "gino:0": 0.2,
    }
    assert result["commands"] == ["a", "b"]
    assert result["chosen"] == {"ours": {"lr": 1}}


def test_a_target_is_missed_above_two_thirds_and_open_while_runs_are_missing() -> None:
    report = load("report")
    holds = part(runs={"ours:0": a_run(0.10, 0.119), "gino:0": a_run(0.16)})
    missed = part(runs={"ours:0": a_run(0.10, 0.121), "gino:0": a_run(0.149), "gino+query:0": a_run(9.0)})
    assert [bar[3] for bar in report.judge_targets(holds)] == [True, True]
    assert [bar[3] for bar in report.judge_targets(missed)] == [False, False]
    assert [bar[1] for bar in report.judge_targets(part())] == [None, None]
    assert "| ours | 0 | 1 | 10.00%" in report.table(holds)


def test_an_unknown_piece_of_work_is_rejected() -> None:
    compare = load("compare")
    names = [piece.name for piece in compare.pieces(["tune", "ours:0,2", "time"], ("ours",))]
    assert names == ["tune", "ours:0", "ours:2", "time"]
    for wrong in ("ours", "theirs:0", "ours:x", "ours:"):
        with pytest.raises(BadInput, match="--only"):
            list(compare.pieces([wrong], ("ours",)))


def test_the_pages_show_every_model_of_the_record():
    record = json.loads(
        (ROOT / "benchmarks" / "results" / "operator_gino_h200.json").read_text(encoding="utf-8")
    )
    for name in ("ours", "gino", "gino+query"):
        figures = [
            f"{100 * record['runs'][f'{name}:{seed}']['test']['median']['l1']:.2f}" for seed in range(3)
        ]
        for page, separator in (
            ("README.md", ", "),
            ("README.zh.md", "、"),
            ("docs/systems/operator.md", " % | "),
        ):
            assert separator.join(figures) in (ROOT / page).read_text(encoding="utf-8"), (page, name)
    table = load("report")
    ratios = [
        table.medians(record, "ours", "test") / table.medians(record, other, "test")
        for other in ("gino", "gino+query")
    ]
    page = (ROOT / "docs" / "systems" / "operator.md").read_text(encoding="utf-8")
    assert f"is {ratios[0]:.2f} against GINO as neuralop offers it, and {ratios[1]:.2f} against" in page
