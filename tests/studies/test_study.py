"""study recovers laws, records faults, resumes after a stop, and refuses bad input before any run."""

from __future__ import annotations

import csv
import io
import json

import pytest

from pinchpoint.core.errors import BadInput, CannotFake, Missing, TargetFailed, TimedOut
from pinchpoint.core.records import Study, load
from pinchpoint.reporting.figures import gallery
from pinchpoint.studies.forecast_process import RestartingForecaster
from pinchpoint.studies.study import study

SIZES = "5k:1M:8"
MIB = 2**20
GIB = 2**30


def line(result, variant, mode="train"):
    return next(law for law in result.laws if (law.variant, law.mode) == (variant, mode))


@pytest.fixture
def no_figures(monkeypatch):
    """Figures take seconds and have their own tests."""
    monkeypatch.setattr("pinchpoint.studies.study_folder.gallery.draw_all", lambda study: {})


def test_a_fake_study_recovers_the_slopes_of_the_forecasts(forecasts):
    result = study("field", sizes=SIZES, variants="all", on="fake", forecaster=forecasts())
    assert result.passed
    assert result.gate == ()
    assert line(result, "eager").slope_bytes_per_point == pytest.approx(11_296, rel=1e-6)
    assert line(result, "eager").intercept_bytes == pytest.approx(74 * MIB, rel=1e-4)
    assert line(result, "eager", "infer").slope_bytes_per_point == pytest.approx(2_060, rel=1e-6)
    assert line(result, "checkpoint").slope_bytes_per_point == pytest.approx(6_200, rel=1e-6)
    assert line(result, "chunked").slope_low <= 0 <= line(result, "chunked").slope_high
    assert line(result, "eager").exponent == pytest.approx(1, abs=0.01)
    assert result.axis == "points"
    assert len(result.points) == 3 * 2 * 8


def test_modes_and_variants_default_to_every_mode_of_the_baseline(forecasts):
    result = study("field", sizes="1k:8k:4", forecaster=forecasts())
    assert {(p.variant, p.mode) for p in result.points} == {("eager", "train"), ("eager", "infer")}


@pytest.mark.usefixtures("no_figures")
def test_the_record_has_the_keys_of_the_contract(forecasts, tmp_path):
    study("field", sizes=SIZES, modes="train", forecaster=forecasts(), output=tmp_path / "new" / "out")
    data = json.loads((tmp_path / "new" / "out" / "study.json").read_text())
    assert data["kind"] == "study"
    assert {"kind", "schema", "target", "machine", "created", "axis", "points", "laws"} <= set(data)
    point_keys = {
        "size",
        "processed",
        "mode",
        "variant",
        "status",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "time_s",
        "theory_bytes",
    }
    assert point_keys <= set(data["points"][0])
    laws = {
        "mode",
        "variant",
        "slope_bytes_per_point",
        "slope_low",
        "slope_high",
        "intercept_bytes",
        "exponent",
        "holdout_error",
    }
    assert laws <= set(data["laws"][0])
    assert data["points"][0]["size"] == data["points"][0]["processed"] == 5_000
    assert isinstance(data["points"][0]["peak_allocated_bytes"], int)
    result = load(tmp_path / "new" / "out" / "study.json")
    assert isinstance(result, Study)
    assert result.complete


def test_the_folder_contains_record_table_figures_and_verdict(forecasts, tmp_path, monkeypatch):
    figures = {name: gallery.drawers()[name] for name in ("peak", "breakdown", "ratio", "theory")}
    # The others take seconds and have their own tests.
    monkeypatch.setattr(gallery, "drawers", lambda: figures)
    result = study("field", sizes=SIZES, forecaster=forecasts(), output=tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {
        "study.json",
        "study.csv",
        "cards.csv",
        "verdict.md",
        "peak.png",
        "peak.svg",
        "breakdown.png",
        "ratio.svg",
    } <= names
    assert not any(name.startswith(".") for name in names)
    assert "theory.png" not in names  # nothing was measured
    rows = list(csv.DictReader(io.StringIO((tmp_path / "study.csv").read_text())))
    assert len(rows) == len(result.points)
    assert int(rows[0]["peak_allocated_bytes"]) == result.points[0].peak_allocated_bytes
    parts = [
        int(value)
        for name, value in rows[0].items()
        if name.endswith("_bytes") and name.split("_")[0] in result.points[0].breakdown
    ]
    assert sum(parts) == result.points[0].peak_allocated_bytes
    verdict = (tmp_path / "verdict.md").read_text()
    assert "| eager | train | 11,296.0 |" in verdict
    assert "![Peak vs size](peak.png)" in verdict


def test_the_card_table_inverts_the_law_with_a_tenth_in_reserve(forecasts):
    result = study(
        "field", sizes=SIZES, modes="train", variants="eager,chunked", cards="24GiB", forecaster=forecasts()
    )
    eager, chunked = result.cards
    # An unnamed card leaves a tenth free and has the context of an H200.
    room = 0.9 * 24 * GIB - 751 * MIB
    assert eager["size"] == pytest.approx((room - 74 * MIB) / 11_296, rel=0.01)
    assert eager["low"] <= eager["size"] <= eager["high"]
    assert eager["extrapolated"]
    # A flat variant: no size is too large.
    assert (chunked["size"], chunked["low"], chunked["high"]) == (None, None, None)


@pytest.mark.usefixtures("no_figures")
def test_a_workload_that_ignores_its_axis_fails_and_is_still_written(forecasts, tmp_path):
    result = study(
        "field", sizes=SIZES, modes="train", forecaster=forecasts(ignores_axis=True), output=tmp_path
    )
    assert not result.passed
    assert any("the size was not applied" in reason for reason in result.gate)
    assert any("does not grow" in reason for reason in result.gate)
    written = load(tmp_path / "study.json")
    assert isinstance(written, Study)
    assert written.gate == result.gate
    assert "**failed**" in (tmp_path / "verdict.md").read_text()


def test_one_point_that_cannot_be_faked_is_recorded_and_the_study_continues(forecasts):
    errors = {
        5_000: CannotFake("no fake of my_op at net.py:3", hint="register one"),
        1_000_000: TimedOut("slow", hint="wait"),
    }
    result = study("field", sizes=SIZES, modes="train", forecaster=forecasts(errors=errors))
    assert [p.status for p in result.points] == ["failed", *["ok"] * 6, "timeout"]
    assert result.points[0].reason == "no fake of my_op at net.py:3"
    assert result.passed


@pytest.mark.usefixtures("no_figures")
def test_a_target_that_never_runs_is_an_error_and_leaves_no_folder(forecasts, tmp_path):
    class Broken(forecasts):
        def predict(self, **request):
            raise TargetFailed("building field raised ValueError at mine.py:3: no", hint="fix the target")

    with pytest.raises(TargetFailed, match=r"mine\.py:3"):
        study("field", sizes=SIZES, forecaster=Broken(), output=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_plain_factory_has_the_mode_its_step_has(forecasts, tmp_path):
    (tmp_path / "mine.py").write_text("def step_of(size, device):\n    return lambda: None\n")
    result = study(f"{tmp_path / 'mine.py'}:step_of", sizes="1k:64k:6", forecaster=forecasts(mode="infer"))
    assert {p.mode for p in result.points} == {"infer"}
    assert {p.variant for p in result.points} == {"baseline"}
    assert result.passed


def test_running_out_of_memory_is_recorded_and_its_boundary_found_within_one_percent(forecasts, workers):
    limit = 8 * GIB
    run = workers(limit_bytes=limit)
    result = study("field", sizes="5k:4M:8", modes="train", on="cuda", forecaster=forecasts(), runner=run)
    assert result.points[-1].status != "failed"
    ladder = result.points[:8]
    assert [p.status for p in ladder] == ["ok"] * 6 + ["oom"] * 2
    assert ladder[7].reason == f"not run: {ladder[6].size:,} already ran out of memory"
    (found,) = result.boundary
    truth = (limit - 74 * MIB) / 11_296
    assert found["fits"] <= truth < found["fails"] <= 1.01 * found["fits"]
    assert found["runs"] <= 6
    assert result.passed  # running out of memory does not fail the size check
    assert [law.points for law in result.laws] == [6]  # the law is fitted to the ladder, not to the search


def test_measured_points_carry_theory_times_and_all_three_peaks(forecasts, workers):
    run = workers()
    result = study("field", sizes="5k:1M:4", on="cuda", forecaster=forecasts(), runner=run, repeats=7)
    point = result.points[0]
    assert point.theory_bytes == point.peak_allocated_bytes
    assert point.total_bytes > point.peak_reserved_bytes > point.peak_allocated_bytes
    assert point.time_low_s < point.time_s < point.time_high_s
    assert result.repeats == 7
    assert result.machine["gpu"] == "stand-in"
    assert {(r.timed, r.repeats) for r in run.requests} == {(True, 7)}


def test_a_card_limits_cuda_to_its_memory_without_the_context(forecasts, workers):
    run = workers()
    study("field", sizes="5k:1M:4", modes="train", on="card:24GiB", forecaster=forecasts(), runner=run)
    assert {r.cap_bytes for r in run.requests} == {24 * GIB - 960 * MIB}


def test_on_the_cpu_theory_has_no_cublas_and_nothing_is_reserved(forecasts, workers):
    result = study(
        "field", sizes="5k:1M:4", modes="train", on="cpu", forecaster=forecasts(), runner=workers()
    )
    assert all(
        p.theory_bytes == p.peak_allocated_bytes and p.peak_reserved_bytes is None for p in result.points
    )
    assert sum(result.points[0].breakdown.values()) == result.points[0].theory_bytes


def test_a_crash_of_one_measured_point_is_recorded_and_a_slow_one_ends_its_line(forecasts, workers):
    trouble = {
        2_000: {"status": "failed", "reason": "was killed by SIGSEGV"},
        32_000: {"status": "timeout", "reason": "took longer than 300 s"},
    }
    run = workers(trouble=trouble)
    result = study(
        "field", sizes="1k,2k,4k,8k,16k,32k,64k", modes="train", on="cpu", forecaster=forecasts(), runner=run
    )
    assert [p.status for p in result.points] == ["ok", "failed", "ok", "ok", "ok", "timeout", "timeout"]
    assert result.points[-1].reason == "not run: 32k already took too long"
    assert all(r.size <= 32_000 for r in run.requests)
    assert result.points[1].reason == "was killed by SIGSEGV"


def test_a_measured_study_continues_without_theory(forecasts, workers):
    error = CannotFake("no fake of my_op", hint="register one")
    fakes = forecasts(errors=dict.fromkeys((1_000, 2_000, 4_000, 8_000), error))
    result = study("field", sizes="1k,2k,4k,8k", modes="train", on="cpu", forecaster=fakes, runner=workers())
    assert all(p.status == "ok" and p.theory_bytes is None for p in result.points)
    assert fakes.requests == [("eager", "train", 1_000)]  # not tried again at every size
    assert any("eager train 1k has no theory: no fake of my_op" in note for note in result.notes)


class Stops:
    """A runner that is interrupted after some requests."""

    def __init__(self, run, after):
        self.run, self.left = run, after

    def __call__(self, request, *, timeout_s):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return self.run(request, timeout_s=timeout_s)


@pytest.mark.usefixtures("no_figures")
def test_ctrl_c_keeps_finished_points_and_resume_continues_from_them(forecasts, workers, tmp_path):
    options = {"sizes": "1k:32k:6", "modes": "train", "on": "cpu"}
    whole = study("field", **options, forecaster=forecasts(), runner=workers())
    with pytest.raises(KeyboardInterrupt):
        study("field", **options, forecaster=forecasts(), runner=Stops(workers(), 3), output=tmp_path)
    kept = load(tmp_path / "study.json")
    assert isinstance(kept, Study)
    assert [p.size for p in kept.points] == [1_000, 2_000, 4_000]
    assert not kept.complete
    assert not kept.passed
    assert not (tmp_path / "verdict.md").exists()
    run = workers()
    result = study("field", **options, forecaster=forecasts(), runner=run, output=tmp_path, resume=True)
    assert {r.size for r in run.requests} == {8_000, 16_000, 32_000}
    assert result.points == whole.points
    assert result.laws == whole.laws
    assert result.complete


@pytest.mark.usefixtures("no_figures")
def test_a_resumed_study_that_is_stopped_again_loses_nothing(forecasts, workers, tmp_path):
    trouble = {1_000: {"status": "failed", "reason": "was killed by SIGSEGV"}}
    options = {"sizes": "1k:32k:6", "modes": "train", "on": "cpu", "output": tmp_path}
    study("field", **options, forecaster=forecasts(), runner=workers(trouble=trouble))
    with pytest.raises(KeyboardInterrupt):  # the failed first point is tried again, then stopped at the next
        study(
            "field",
            **{**options, "sizes": "1k:64k:7"},
            forecaster=forecasts(),
            runner=Stops(workers(), 1),
            resume=True,
        )
    kept = load(tmp_path / "study.json")
    assert isinstance(kept, Study)
    assert sorted(p.size for p in kept.points) == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000]
    assert all(p.status == "ok" for p in kept.points)


@pytest.mark.usefixtures("no_figures")
def test_resume_finds_the_same_boundary_without_running_again(forecasts, workers, tmp_path):
    options = {"sizes": "5k:4M:8", "modes": "train", "on": "cpu", "output": tmp_path}
    first = study("field", **options, forecaster=forecasts(), runner=workers(limit_bytes=8 * GIB))
    run = workers(limit_bytes=8 * GIB)
    again = study("field", **options, forecaster=forecasts(), runner=run, resume=True)
    assert {p.size for p in again.points} == {p.size for p in first.points}
    assert again.boundary[0]["fits"] == first.boundary[0]["fits"]
    assert again.boundary[0]["fails"] == first.boundary[0]["fails"]
    assert run.requests == []


@pytest.mark.usefixtures("no_figures")
def test_resume_refuses_the_folder_of_another_study(forecasts, tmp_path):
    study("field", sizes="1k:8k:4", forecaster=forecasts(), output=tmp_path)
    with pytest.raises(BadInput, match="seed 0, not 1"):
        study("field", sizes="1k:8k:4", forecaster=forecasts(), output=tmp_path, resume=True, seed=1)
    with pytest.raises(BadInput, match="on 'fake', not 'cpu'"):
        study("field", sizes="1k:8k:4", forecaster=forecasts(), output=tmp_path, resume=True, on="cpu")
    with pytest.raises(BadInput, match="nothing to resume"):
        study("field", sizes="1k:8k:4", forecaster=forecasts(), resume=True)


@pytest.mark.usefixtures("no_figures")
def test_an_earlier_study_is_replaced_only_on_request(forecasts, tmp_path):
    options = {"sizes": "1k,2k,4k", "modes": "train", "output": tmp_path}
    first = study("field", **options, forecaster=forecasts())
    asked = forecasts()
    with pytest.raises(BadInput, match="already holds a study") as error:
        study("field", **options, seed=1, forecaster=asked)
    assert "--overwrite" in error.value.hint and load(tmp_path / "study.json") == first
    again = study("field", **options, seed=1, overwrite=True, forecaster=forecasts())
    assert load(tmp_path / "study.json") == again and again.seed == 1


def test_progress_reports_every_point(forecasts):
    events = []
    study(
        "field",
        sizes="1k:8k:4",
        modes="train",
        forecaster=forecasts(),
        progress=lambda *news: events.append(news),
    )
    assert events[0] == (0, 4, "eager train 1k")
    assert events[-1] == (4, 4, "done")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sizes": "0"}, "size '0'"),
        ({"sizes": "-5"}, "size '-5'"),
        ({"sizes": "many"}, "size 'many'"),
        ({"sizes": "1M:5k"}, "must increase"),
        ({"sizes": []}, "has no sizes"),
        ({"sizes": [1000, 0]}, "size 0"),
        ({"modes": "serve"}, "no mode 'serve'"),
        ({"variants": "quick"}, "no variant 'quick'"),
        ({"on": "gpu"}, "cannot run on 'gpu'"),
        ({"on": "card:"}, "cannot run on 'card:'"),
        ({"on": "card:nonsense"}, "no card 'nonsense'"),
        ({"on": "card:100MiB"}, "context"),
        ({"cards": "nonsense"}, "no card 'nonsense'"),
        ({"repeats": 0}, "repeats is 0"),
        ({"timeout_s": 0}, "timeout is 0"),
        ({"target": "nothing"}, "no target 'nothing'"),
        ({"target": "no_file.py:step_of"}, "does not exist"),
    ],
)
def test_bad_input_is_refused_before_any_run(forecasts, tmp_path, options, says):
    fakes = forecasts()
    arguments = {"target": "field", "sizes": "1k:8k:4", "output": tmp_path / "out", **options}
    with pytest.raises(BadInput, match=says):
        study(arguments.pop("target"), forecaster=fakes, **arguments)
    assert fakes.requests == []
    assert list(tmp_path.iterdir()) == []


def test_a_script_has_no_size_to_study(forecasts, tmp_path):
    (tmp_path / "train.py").write_text("print('training')\n")
    with pytest.raises(BadInput, match="is a script"):
        study(str(tmp_path / "train.py"), sizes="1k:8k:4", forecaster=forecasts())


def test_a_folder_that_cannot_be_written_is_refused_before_any_run(forecasts, tmp_path):
    (tmp_path / "file").write_text("")
    fakes = forecasts()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/pinchpoint"):
        with pytest.raises(BadInput):
            study("field", sizes="1k:8k:4", forecaster=fakes, output=folder)
    assert fakes.requests == []


@pytest.mark.parametrize("on", ["cuda", "card:24GiB"])
def test_cuda_without_a_gpu_is_a_missing_device(forecasts, on):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    with pytest.raises(Missing) as caught:
        study("field", sizes="1k:8k:4", on=on, forecaster=forecasts())
    assert caught.value.exit_code == 3


def test_the_forecaster_restarts_after_a_time_limit(forecasts):
    opened = []

    class Manager(forecasts):
        def __enter__(self):
            opened.append("open")
            return self

        def __exit__(self, *_):
            opened.append("close")

    slow = {2_000: TimedOut("slow", hint="wait")}
    with RestartingForecaster(lambda: Manager(errors=slow)) as fakes:
        assert opened == []  # nothing starts before the first prediction
        fakes.predict(size=1_000, mode="train", variant="eager")
        with pytest.raises(TimedOut):
            fakes.predict(size=2_000, mode="train", variant="eager")
        fakes.predict(size=4_000, mode="train", variant="eager")
    assert opened == ["open", "close", "open", "close"]


GROWER = """
import torch

def step_of(size, device):
    x = torch.ones(size, 256, device=device, requires_grad=True)

    def step():
        (2 * x).exp().mean().backward()
        x.grad = None

    return step
"""


@pytest.mark.slow
def test_theory_and_cpu_agree_in_fresh_interpreters(tmp_path):
    pytest.importorskip("torch", reason="measures torch")
    (tmp_path / "grower.py").write_text(GROWER)
    target = f"{tmp_path / 'grower.py'}:step_of"
    result = study(target, sizes="1k,4k,16k", on="cpu", repeats=2, warmup=1, timeout_s=200)
    assert [p.status for p in result.points] == ["ok"] * 3
    assert {p.mode for p in result.points} == {"train"}
    assert all(p.time_s is not None and p.time_s > 0 for p in result.points)
    # The backward pass of exp needs x, the saved output, and the incoming and outgoing gradients.
    assert line(result, "baseline").slope_bytes_per_point == pytest.approx(4 * 1024, rel=0.02)
    for point in result.points:
        # Theory describes a GPU, whose allocator rounds blocks over 10 MiB up to 2 MiB.
        assert point.theory_bytes == pytest.approx(point.peak_allocated_bytes, rel=0.04), result.notes
    assert result.passed


@pytest.mark.gpu
def test_a_limited_gpu_runs_out_of_memory_where_theory_predicts(tmp_path):
    torch = pytest.importorskip("torch", reason="measures torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is visible here")
    result = study("field", sizes="16k:256k:5", modes="train", on="card:3GiB", repeats=5, cards="3GiB")
    (found,) = result.boundary
    assert found["fails"] <= 1.01 * found["fits"]
    assert found["runs"] <= 8
    ran = [p for p in result.points if p.status == "ok"]
    assert len(ran) >= 3
    for point in ran:
        assert point.theory_bytes == pytest.approx(point.peak_allocated_bytes, rel=0.02)
        assert point.total_bytes > point.peak_reserved_bytes >= point.peak_allocated_bytes
    assert result.passed


MLPS = ["64,64", "128,128,128"]


def test_a_setting_with_several_values_is_a_second_axis(forecasts):
    fake = forecasts()
    result = study(
        "operator",
        sizes="1k:8k:4",
        modes="train",
        variants="eager,flat",
        settings={"mlp": MLPS},
        forecaster=fake,
    )
    names = [f"{variant}[mlp={mlp}]" for variant in ("eager", "flat") for mlp in MLPS]
    assert list(dict.fromkeys(p.variant for p in result.points)) == names
    assert [law.variant for law in result.laws] == names
    assert {variant for variant, _, _ in fake.requests} == {"eager", "flat"}, (
        "the workload is asked for its own names"
    )
    assert [s["mlp"] for s in fake.settings] == ([MLPS[0]] * 4 + [MLPS[1]] * 4) * 2
    assert "mlp" not in result.settings, "what varies is in the names"
    assert result.settings["part"] == "encoder"


def test_a_flat_variant_is_judged_under_every_setting(forecasts):
    result = study(
        "operator",
        sizes="200k:1600k:4",
        modes="train",
        variants="flat",
        settings={"mlp": MLPS},
        forecaster=forecasts(),
    )
    assert len(result.gate) == 2
    assert all("declared to grow by no more than 48 B/point" in reason for reason in result.gate)


@pytest.mark.usefixtures("no_figures")
def test_settings_reach_the_fresh_interpreters_and_the_record(forecasts, workers, tmp_path):
    run = workers()
    arguments = {"mlp": "64,64", "part": "decoder"}
    result = study(
        "operator",
        sizes="1k:8k:4",
        modes="infer",
        settings=arguments,
        on="cpu",
        forecaster=forecasts(),
        runner=run,
        output=tmp_path,
    )
    wanted = arguments | {"channels": "16", "dimension": "3", "precision": "fp32"}
    assert result.settings == wanted
    assert all(request.settings == wanted and request.variant == "eager" for request in run.requests)
    assert load(tmp_path / "study.json").settings == wanted
    assert "part=decoder mlp=64,64" in (tmp_path / "verdict.md").read_text()
    assert ("settings", "part=decoder mlp=64,64 channels=16 dimension=3 precision=fp32") in result.summary()


@pytest.mark.usefixtures("no_figures")
def test_resume_refuses_a_study_with_other_settings(forecasts, tmp_path):
    options = {"sizes": "1k:8k:4", "modes": "train", "forecaster": forecasts(), "output": tmp_path}
    study("operator", **options, settings={"mlp": "64,64"})
    with pytest.raises(BadInput, match="a study with settings"):
        study("operator", **options, settings={"mlp": "32"}, resume=True)
    with pytest.raises(BadInput, match="a study with settings"):
        study("operator", **options, settings={"mlp": MLPS}, resume=True)


@pytest.mark.parametrize(
    ("target", "settings", "what"),
    [
        ("operator", {"width": "3"}, "operator has no setting 'width'"),
        ("operator", {"mlp": "64,,64"}, "setting mlp cannot be '64,,64'"),
        ("operator", {"mlp": ["64", "0"]}, "setting mlp cannot be '0'"),
        ("operator", {"part": "middle"}, "setting part cannot be 'middle'"),
        ("field", {"mlp": "64"}, "field has no setting 'mlp'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(forecasts, target, settings, what):
    fake = forecasts()
    with pytest.raises(BadInput, match=what):
        study(target, sizes="1k:8k:4", settings=settings, forecaster=fake)
    assert fake.requests == []


def test_a_plain_factory_has_no_settings(forecasts, tmp_path):
    (tmp_path / "mine.py").write_text("def step_of(size, device):\n    return lambda: None\n")
    with pytest.raises(BadInput, match="plain factory and has no settings"):
        study(f"{tmp_path}/mine.py:step_of", sizes="1k:8k:4", settings={"mlp": "64"}, forecaster=forecasts())
