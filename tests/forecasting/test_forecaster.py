"""Forecasts of factories and workloads: what they contain, and how bad targets are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the fake run needs torch")

from pinchpoint.core.errors import BadInput, CannotFake, Missing, PinchpointError, TargetFailed, TimedOut
from pinchpoint.core.machine import describe
from pinchpoint.core.records import BREAKDOWN, Forecast
from pinchpoint.forecasting import levers
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.forecasting.predict import predict

FACTORIES = str(Path(__file__).parent / "factories.py")
MIB = 2**20
pytestmark = pytest.mark.usefixtures("quick_workers")


def target(name: str) -> str:
    return f"{FACTORIES}:{name}"


@pytest.fixture(scope="module")
def trained() -> Iterator[Forecaster]:
    with Forecaster(target("train")) as result:
        yield result


def test_the_mode_of_a_factory_is_what_its_step_does(trained: Forecaster) -> None:
    result = trained.predict(size=100_000)
    assert (result.mode, result.size, result.variant, result.processed, result.steps) == (
        "train",
        100_000,
        None,
        100_000,
        2,
    )
    assert trained.predict(size=100_000, mode="train").peak_allocated_bytes == result.peak_allocated_bytes
    with pytest.raises(BadInput, match="its mode is train") as caught:
        trained.predict(size=100_000, mode="infer")
    assert "--mode train" in caught.value.hint


def test_the_peak_matches_a_count_by_hand(trained: Forecaster) -> None:
    result = trained.predict(size=1_000_000)
    row = 1_000_000 * 256 * 4
    weights = 4 * (256 * 256 + 256) * 4
    # The input; for each of four layers the product, saved for GELU's backward, and GELU's result. The peak
    # is in the square's backward, grad * (2 * y**1): the incoming gradient, y**1, twice that, and the
    # outgoing gradient.
    assert result.peak_allocated_bytes - result.workspace_bytes == pytest.approx((1 + 8 + 4) * row, rel=0.005)
    assert result.breakdown["weights"] == pytest.approx(weights, rel=0.01)
    assert result.breakdown["optimizer"] == pytest.approx(2 * weights, rel=0.01)
    assert result.breakdown["inputs"] == pytest.approx(row, rel=0.01)
    assert result.breakdown["activations"] == pytest.approx(8 * row, rel=0.01)
    assert (
        sum(result.breakdown.values()) == result.peak_allocated_bytes and tuple(result.breakdown) == BREAKDOWN
    )


def test_the_fields_of_a_forecast_are_consistent(trained: Forecaster) -> None:
    result = trained.predict(size=50_000)
    assert result.framework == "torch" and result.method == "fake tensors" and result.card == "h200"
    assert result.total_bytes == (result.peak_reserved_bytes or 0) + result.context_bytes
    assert result.workspace_bytes <= result.peak_allocated_bytes <= (result.peak_reserved_bytes or 0)
    assert max(size for _, size, _ in result.timeline) == result.peak_allocated_bytes
    assert Path(result.lines[0].file).name == "factories.py" and result.lines[0].code
    assert any(entry["name"].startswith("Sequential") for entry in result.modules)
    assert Forecast.from_json(result.to_json()) == result
    assert result.machine == describe()  # this machine, not the simulated card
    fits = list(result.fits.values())
    assert fits == sorted(fits) and fits[-1]  # smallest card first


def test_one_size_does_not_affect_the_next(trained: Forecaster) -> None:
    first = trained.predict(size=70_000)
    trained.predict(size=200_000)
    again = trained.predict(size=70_000)
    assert again.peak_allocated_bytes == first.peak_allocated_bytes
    assert again.peak_reserved_bytes == first.peak_reserved_bytes


def test_a_forecast_is_the_same_with_the_shapes_of_earlier_ones(trained: Forecaster) -> None:
    trained.predict(size=90_000, half=True)
    later = trained.predict(size=90_000)
    with Forecaster(target("train")) as fresh:
        assert replace(fresh.predict(size=90_000), took_s=0.0, created="") == replace(
            later, took_s=0.0, created=""
        )


@pytest.mark.parametrize(("own", "policy"), [(None, "passive"), ("active", "active")])
def test_threads_of_a_worker_sleep_while_they_wait_unless_the_user_sets_another_policy(
    own: str | None, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.py"
    path.write_text(
        "import os\nimport torch\ndef f(size, device):\n    raise ValueError(os.environ['OMP_WAIT_POLICY'])\n"
    )
    if own is None:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    else:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    with pytest.raises(TargetFailed, match=policy), Forecaster(f"{path}:f") as forecaster:
        forecaster.predict(size=10)


def test_the_peak_grows_by_the_bytes_of_a_point(trained: Forecaster) -> None:
    small, large = (trained.predict(size=size).peak_allocated_bytes for size in (2_000_000, 4_000_000))
    assert (large - small) / 2_000_000 == pytest.approx(13 * 256 * 4, rel=0.005)


def test_half_predicts_the_peak_of_a_half_precision_step(trained: Forecaster) -> None:
    with Forecaster(target("train_half")) as other:
        by_hand = other.predict(size=500_000)
    ours = trained.predict(size=500_000, half=True)
    assert ours.peak_allocated_bytes == pytest.approx(by_hand.peak_allocated_bytes, rel=0.02)
    assert ours.peak_allocated_bytes < 0.8 * trained.predict(size=500_000).peak_allocated_bytes


def test_a_factory_without_a_backward_pass_has_mode_infer() -> None:
    with Forecaster(target("infer")) as result:
        assert result.predict(size=1000).mode == "infer"
        with pytest.raises(BadInput, match="its mode is infer"):
            result.predict(size=1000, mode="train")


def test_counts_that_depend_on_data_give_an_interval_and_a_note() -> None:
    with Forecaster(target("masked")) as result:
        matches = result.predict(size=4_000_000)
        exact = result.predict(size=10_000)
    assert exact.low_bytes is not None and any(
        "they are those of the available data" in note for note in exact.notes
    )
    assert matches.low_bytes is not None and matches.high_bytes is not None
    assert matches.low_bytes <= matches.peak_allocated_bytes <= matches.high_bytes
    assert any("factories.py" in note and "depend on the data" in note for note in matches.notes)
    # Per selected point: 64 inputs, the product and GELU's result of 512 each, and the gradient of that; in
    # addition all points and their mask. The share in 16,384 points is known to a few per cent.
    expected = 4_000_000 * (64 * 4 + 1) + 0.3 * 4_000_000 * (64 + 3 * 512) * 4 + matches.workspace_bytes
    assert matches.peak_allocated_bytes == pytest.approx(expected, rel=0.05)
    assert matches.low_bytes < expected < matches.high_bytes < 2 * matches.low_bytes


@pytest.fixture(scope="module")
def misbehaving() -> Iterator[Forecaster]:
    with Forecaster(target("misbehaves")) as result:
        yield result


@pytest.mark.parametrize(
    ("size", "kind", "what"),
    [
        (1, TargetFailed, r"ZeroDivisionError at .*factories\.py:\d+: the factory fails"),
        (2, TargetFailed, r"A step of .* raised RuntimeError at .*factories\.py:\d+"),
        (3, BadInput, "returned int, not a step"),
        (4, TargetFailed, "killed by SIGKILL"),
        (5, TargetFailed, "exit code 7"),
        (6, TargetFailed, "SystemExit"),
        (7, Missing, "package_that_is_not_there"),
        (8, CannotFake, r"pinchpoint_factories::secret.? at .*factories\.py:\d+"),
    ],
)
def test_a_target_that_misbehaves_is_named_with_a_hint(
    misbehaving: Forecaster, size: int, kind: type[PinchpointError], what: str
) -> None:
    with pytest.raises(kind, match=what) as caught:
        misbehaving.predict(size=size)
    assert caught.value.hint


def test_a_name_that_is_not_in_the_file_is_refused_with_the_names_that_are() -> None:
    with pytest.raises(BadInput, match="has no 'nowhere'") as caught, Forecaster(target("nowhere")):
        pass
    assert "train" in caught.value.hint


def test_a_step_that_never_ends_is_stopped_and_the_next_size_is_predicted() -> None:
    with Forecaster(target("loops"), timeout_s=120) as result:
        result.predict(size=4)
        result.timeout_s = 1.0
        with pytest.raises(TimedOut, match="longer than 1 s"):
            result.predict(size=13)
        result.timeout_s = 60.0
        assert result.predict(size=2**20).peak_allocated_bytes >= 4 * MIB


@pytest.fixture(scope="module")
def parts() -> Iterator[Forecaster]:
    with Forecaster(target("WORKLOAD")) as result:
        yield result


def test_a_workloads_modes_variants_and_chunks_are_its_own(parts: Forecaster) -> None:
    whole = parts.predict(size=200_000)
    assert (whole.mode, whole.variant, whole.processed) == ("train", "whole", 200_000)
    assert parts.predict(size=200_000, mode="infer").peak_allocated_bytes < whole.peak_allocated_bytes
    chunked = [
        parts.predict(size=200_000, variant="chunked", chunk=chunk).peak_allocated_bytes
        for chunk in (10_000, 50_000)
    ]
    assert chunked[0] < chunked[1] < whole.peak_allocated_bytes
    with pytest.raises(BadInput, match="no variant 'other'") as caught:
        parts.predict(size=10, variant="other")
    assert "whole, chunked" in caught.value.hint


@pytest.mark.parametrize("size", [0, -5, "many", "1.5", "0"])
def test_an_invalid_size_is_refused_before_any_work(size: int | str) -> None:
    with pytest.raises(BadInput, match="size"):
        predict(target("train"), size=size)


def test_invalid_requests_are_refused_before_any_work() -> None:
    for wrong, what in (
        ({"target": "no-such-workload", "size": 10}, "There is no target"),
        ({"target": "no_such_file.py:step_of", "size": 10}, "does not exist"),
        ({"target": target("train"), "size": 10, "card": "rtx9999"}, "There is no card"),
        ({"target": target("train"), "size": 10, "mode": "dream"}, "There is no mode"),
        ({"target": target("train")}, "needs a size"),
        ({"target": target("train"), "size": 10, "steps": 1}, "steps"),
        ({"target": target("train"), "size": 10, "args": ["--x"]}, "no arguments"),
        ({"target": FACTORIES, "size": 10}, "is a script"),
    ):
        with pytest.raises(BadInput, match=what):
            predict(**wrong)  # type: ignore[arg-type]


def test_levers_are_differences_between_predicted_runs() -> None:
    size = 1_000_000
    with Forecaster(target("WORKLOAD"), card="6GiB") as result:
        tight = result.predict(size=size)
        assert not tight.fits["6GiB"] and tight.levers == ()
        matches = levers.find(result, tight, chunk=None, args=())
        saved = {lever.name: lever.saves_bytes for lever in matches}
        assert {"bf16", "chunk", "accumulation"} <= set(saved)
        assert saved["bf16"] == tight.total_bytes - result.predict(size=size, half=True).total_bytes
        assert saved["chunk"] == tight.total_bytes - result.predict(size=size, variant="chunked").total_bytes
        assert saved["accumulation"] == tight.total_bytes - result.predict(size=size // 2).total_bytes
    assert list(saved.values()) == sorted(saved.values(), reverse=True) and all(
        lever.how for lever in matches
    )


def test_all_byte_fields_are_integers(trained: Forecaster) -> None:
    record = trained.predict(size=10_000).to_dict()
    for key, value in record.items():
        if key.endswith("_bytes") and value is not None:
            assert type(value) is int, key
    assert all(type(v) is int for v in record["breakdown"].values())
    assert all(type(line["bytes"]) is int and type(line["line"]) is int for line in record["lines"])
    assert all(type(module["bytes"]) is int for module in record["modules"])


def test_a_forecast_of_a_jax_workload_names_its_method() -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    result = predict("orbital", size=256)
    assert result.framework == "jax" and result.method in ("xla memory analysis", "jaxpr liveness")
    assert result.peak_reserved_bytes is None and result.peak_allocated_bytes > 0
    assert sum(result.breakdown.values()) == result.peak_allocated_bytes


@pytest.mark.slow
def test_a_jax_module_or_workload_is_distinguished_from_torch_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax", reason="a JAX target")
    (tmp_path / "grower.py").write_text(
        "import jax.numpy as jnp\n"
        "def step_of(size, device):\n    x = jnp.ones((size, 256))\n    return lambda: (x * 2).sum(0)\n"
        "def build(size, **_):\n    from pinchpoint import Case\n"
        "    return Case(step=step_of(size, 'cuda'), processed=size)\n"
    )
    (tmp_path / "holds.py").write_text(
        "from pinchpoint import Variant, Workload\n"
        "W = Workload(name='w', axis='a', framework='jax', build='grower:build',"
        " variants=(Variant('v'),), modes=('infer',))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    matches = [predict(text, size=100_000) for text in ("grower.py:step_of", "grower:step_of", "holds.py:W")]
    assert [result.framework for result in matches] == ["jax"] * 3
    assert (
        len({result.peak_allocated_bytes for result in matches}) == 1
        and matches[0].peak_allocated_bytes >= 100_000 * 256 * 4
    )


def test_a_jax_step_fits_if_it_fits_the_share_of_a_card_that_jax_reserves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax", reason="a JAX target")
    path = tmp_path / "wide.py"
    path.write_text(
        "import jax.numpy as jnp\ndef step_of(size, device):\n    x = jnp.ones((size, 256))\n"
        "    return lambda: x.sum(0)\n"
    )
    rows = 20 * 2**30 // 1024  # 20 GiB: more than three quarters of 24
    plain = predict(f"{path}:step_of", size=rows, card="24GiB")
    assert not plain.fits["24GiB"] and any(
        "75%" in note and "XLA_CLIENT_MEM_FRACTION" in note for note in plain.notes
    )
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.95")
    assert predict(f"{path}:step_of", size=rows, card="24GiB").fits["24GiB"]


def test_a_step_that_stays_on_the_host_is_refused() -> None:
    with pytest.raises(BadInput, match="allocates nothing on the GPU") as caught:
        predict(target("on_the_host"), size=1000)
    assert "`device` that is passed in" in caught.value.hint


def test_points_that_are_created_but_not_used_are_not_processed() -> None:
    assert predict(target("a_slice"), size=50_000).processed is None


def test_fits_includes_the_interval_of_data_dependent_counts() -> None:
    result = predict(target("kept_pairs"), size=32, card="24GiB")
    assert any("24GiB is taken to be a card like the h200" in note for note in result.notes)
    assert result.high_bytes is not None and result.needs_bytes is not None
    room = 24 * 2**30 - result.context_bytes
    assert result.peak_allocated_bytes < room < result.needs_bytes
    assert not result.fits["24GiB"] and result.fits["h200"]


def test_inference_that_differentiates_stays_inference() -> None:
    """Forces are gradients: a workload itself declares its mode."""
    with Forecaster(target("FORCES")) as forecaster:
        assert forecaster.predict(size=1000, mode="infer").mode == "infer"
        assert forecaster.predict(size=1000, mode="train").mode == "train"


def test_a_chunk_for_a_target_without_chunks_is_refused(trained: Forecaster) -> None:
    with pytest.raises(BadInput, match="does not support chunking"):
        trained.predict(size=1000, chunk=10)


def test_settings_for_a_target_without_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a plain factory and has no settings"):
        predict(target("train"), size=1000, settings={"mlp": "64"})
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(BadInput, match="is a script, which has no size, variant, chunk or settings"):
        predict(str(script), settings={"mlp": "64"})


@pytest.mark.parametrize(("name", "line"), [("crashes", "ctypes.string_at(0)"), ("lacks", "import no_such")])
def test_debug_has_the_targets_own_traceback(name: str, line: str) -> None:
    """Also of a crash, and of a package that is missing inside the target."""
    code = Path(FACTORIES).read_text(encoding="utf-8").splitlines()
    number = next(i for i, text in enumerate(code, 1) if line in text)
    with pytest.raises((TargetFailed, Missing)) as caught:
        predict(target(name), size=10)
    notes = "\n".join(caught.value.__notes__)
    assert f'factories.py", line {number}' in notes
