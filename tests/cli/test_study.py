"""`pinchpoint study` on the command line: exit codes, a summary of 80 columns, and Ctrl-C."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core.growth_law import law
from pinchpoint.core.records import Point, Study

SIZES = (5_000, 50_000, 500_000, 1_000_000)
PEAKS = {size: 74 * 2**20 + 11_296 * size for size in SIZES}
MADE = Study(
    target="field",
    axis="points",
    on="fake",
    points=tuple(Point(s, "train", "eager", "ok", processed=s, peak_allocated_bytes=PEAKS[s]) for s in SIZES),
    laws=(law(SIZES, list(PEAKS.values()), mode="train", variant="eager"),),
    passed=True,
    gate=(),
    boundary=({"mode": "train", "variant": "eager", "fits": 990_000, "fails": 999_000, "runs": 2},),
    notes=("a note",),
    took_s=12.5,
    machine={},
)


@pytest.fixture
def makes(monkeypatch):
    """Let the verb return `MADE`, or raise; returns the recorded arguments."""
    requests: dict[str, object] = {}

    def use(result):
        def study(target, **options):
            requests.update(options, target=target)
            options["progress"](0, 4, "eager train 5k")
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr("pinchpoint.studies.study.study", study)
        return requests

    return use


def test_a_passed_gate_exits_0_with_a_summary_of_80_columns(makes, capsys, tmp_path):
    requests = makes(MADE)
    assert (
        run(["study", "field", "--sizes", "5k:1M:4", "--modes", "train", "-o", str(tmp_path), "--seed", "7"])
        == 0
    )
    output = capsys.readouterr()
    assert requests["sizes"] == "5k:1M:4"
    assert requests["seed"] == 7
    assert "11,296.0" in output.out
    first = output.out.splitlines()[0]
    assert (
        first.startswith("Each point adds 11.03 KiB to the peak") and "the size check passed." in output.out
    )
    assert "990,000 fits, 999,000 does not" in output.out
    assert str(tmp_path) in output.out
    assert max(len(line) for line in output.out.splitlines() if str(tmp_path) not in line) <= 80
    assert "1/4 eager train 5k" in output.err
    assert "a note" in output.err


def test_a_failed_gate_exits_1_and_says_why(makes, capsys):
    makes(replace(MADE, passed=False, gate=("eager train: memory does not grow with the size",)))
    assert run(["study", "field", "--sizes", "5k:1M"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "The size check failed: do not rely on the laws of this study."
    assert "memory does not grow" in out
    assert "whether every run processed as many points as requested" in " ".join(out.split())


def test_points_that_failed_are_named_with_their_reason(makes, capsys):
    failed = Point(2_000_000, "train", "eager", "failed", reason="was killed by SIGSEGV")
    makes(replace(MADE, points=(*MADE.points, failed)))
    assert run(["study", "field", "--sizes", "5k:2M"]) == 0
    assert "eager train 2M failed: was killed by SIGSEGV" in capsys.readouterr().out


def test_json_prints_only_the_record(makes, capsys):
    makes(MADE)
    assert run(["study", "field", "--sizes", "5k:1M", "--json"]) == 0
    assert Study.from_dict(json.loads(capsys.readouterr().out)) == MADE


def test_ctrl_c_exits_130_and_says_how_to_resume(makes, capsys, tmp_path):
    makes(KeyboardInterrupt())
    (tmp_path / "study.json").write_text(MADE.to_json())
    assert run(["study", "field", "--sizes", "5k:1M", "-o", str(tmp_path)]) == 130
    assert "continue with --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["field"], "--sizes"),
        (["field", "--sizes", "0"], "size '0'"),
        (["field", "--sizes", "5k:1M", "--variants", "quick"], "no variant 'quick'"),
        (["field", "--sizes", "5k:1M", "--on", "moon"], "cannot run on 'moon'"),
        (["nothing", "--sizes", "5k:1M"], "no target 'nothing'"),
        (["field", "--sizes", "5k:1M", "-o", "/proc/pinchpoint"], "cannot be written"),
    ],
)
def test_bad_input_exits_2_with_an_error_and_a_hint(args, says, capsys):
    assert run(["study", *args]) == 2
    output = capsys.readouterr()
    assert says in output.err
    assert "  hint: " in output.err
    assert output.out == ""
