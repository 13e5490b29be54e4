"""The tables of the operator's memory page have the numbers of the records in the right cells."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.core.records import Law, Point, Study

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "operator"


@pytest.fixture(scope="module")
def script() -> Any:
    return importlib.import_module("memory")


def study_of(*, slope: float, gpu: str | None = None, time_s: float | None = None) -> Study:
    name = "eager[mlp=128,128,128]"
    return Study(
        target="operator",
        axis="edges",
        on="fake",
        points=(
            Point(
                1_000_000,
                "train",
                name,
                "ok",
                1_000_000,
                int(slope * 1e6),
                theory_bytes=3_700_000_000,
                time_s=time_s,
            ),
        ),
        laws=(
            Law("train", name, slope, slope, slope, 0.0, 1.0, 0.0),
            Law("infer", name, slope / 3, 1, 1, 0.0, 1.0, 0.0),
        ),
        passed=True,
        gate=(),
        settings={"part": "encoder"},
        machine={"gpu": gpu},
        cards=(
            {"card": "rtx4090", "memory_bytes": 2**34, "mode": "train", "variant": name, "size": 5_912_345},
        ),
    )


def test_the_tables_show_predicted_and_measured_side_by_side(script: Any) -> None:
    text = script.page(
        (ROOT / "docs" / "reports" / "operator.md").read_text(encoding="utf-8"),
        {"encoder": study_of(slope=3_700.0)},
        {"encoder": study_of(slope=3_750.0, gpu="NVIDIA H200", time_s=0.0102)},
    )
    assert "| encoder | [128]x3 | 3,700 (3,750) | 1,233 (1,250) | 3.00 | - | - |" in text
    assert "| eager | 1M | 3.45 GiB | 3.49 GiB | -1.33 % | 10.20 ms |" in text
    assert "| rtx4090 | 16.00 GiB | - | 5.91M | - | - |" in text
    assert "Measured on NVIDIA H200." in text


def test_filling_the_page_again_changes_nothing(script: Any) -> None:
    """Therefore the committed page has the tables of the committed records."""
    text = (ROOT / "docs" / "reports" / "operator.md").read_text(encoding="utf-8")
    widths = tuple(script.read(path) for path in script.WIDTHS)
    assert script.page(text, script.read(script.PREDICTED), script.read(script.MEASURED), widths) == text


def test_the_table_of_widths_has_a_row_for_every_combination(script: Any) -> None:
    name = "eager[channels=64 dimension=2]"
    record = replace(
        study_of(slope=1.0),
        laws=(Law("train", name, 400.0, 1, 1, 0.0, 1.0, 0.0), Law("infer", name, 100.0, 1, 1, 0.0, 1.0, 0.0)),
    )
    rows = list(script.widths({"encoder": record}, {}))
    assert len(rows) == 6 and rows[1] == ["encoder", "2", "64", "400", "100", "4.00", "-", "-"]


def test_a_page_without_markers_is_rejected(script: Any) -> None:
    with pytest.raises(SystemExit, match="no markers for slopes"):
        script.page("# A page\n", {}, {})


def test_without_a_measurement_its_columns_are_omitted(script: Any) -> None:
    text = script.page(script.PAGE.read_text(encoding="utf-8"), script.read(script.PREDICTED), {})
    header = next(line for line in text.splitlines() if line.startswith("| variant | edges"))
    assert header == "| variant | edges | predicted |"
    assert "| - | - | - |" not in text


def test_records_of_one_width_each_become_one_record(script: Any, tmp_path: Path) -> None:
    paths = []
    for number, (dimension, channels) in enumerate((("3", "32"), ("2", "128"), ("2", "64"))):
        part = study_of(slope=100.0 + number)
        part = replace(
            part,
            points=tuple(replace(p, variant="eager") for p in part.points),
            laws=tuple(replace(one, variant="eager") for one in part.laws),
            cards=({**part.cards[0], "variant": "eager"},),
            gate=("too large",) if number == 1 else (),
            passed=number != 1,
            settings={"part": "full", "dimension": dimension, "channels": channels},
        )
        paths.append(tmp_path / f"{number}.json")
        record = {"commands": {"full": [f"command {number}"]}, "studies": {"full": part.to_dict()}}
        paths[-1].write_text(json.dumps(record))
    script.merge(paths, tmp_path / "whole.json")
    whole = script.read(tmp_path / "whole.json")
    names = [f"eager[channels={c} dimension={d}]" for d, c in (("2", "64"), ("2", "128"), ("3", "32"))]
    assert [p.variant for p in whole["full"].points] == names
    assert [row["variant"] for row in whole["full"].cards] == names
    assert whole["full"].settings == {"part": "full"} and not whole["full"].passed
    assert whole["full"].gate == ("channels=128 dimension=2: too large",)
    commands = json.loads((tmp_path / "whole.json").read_text())["commands"]
    assert commands == {"full": ["command 0", "command 1", "command 2"]}
    rows = list(script.widths(whole, {}))
    assert ["full", "2", "128", "101", "34", "3.00", "-", "-"] in rows
    with pytest.raises(SystemExit, match="the same dimension and width"):
        script.merge([paths[0], paths[0]], tmp_path / "twice.json")
    with pytest.raises(SystemExit, match="several values"):
        script.merge([tmp_path / "whole.json"], tmp_path / "again.json")
    # Another variant of one of the widths joins its study.
    flat = json.loads(paths[2].read_text().replace('"eager"', '"flat"').replace("command 2", "command 3"))
    paths.append(tmp_path / "flat.json")
    paths[-1].write_text(json.dumps(flat))
    script.merge(paths, tmp_path / "both.json")
    both = script.read(tmp_path / "both.json")["full"]
    assert [p.variant for p in both.points] == [names[0], names[0].replace("eager", "flat"), *names[1:]]
    commands = json.loads((tmp_path / "both.json").read_text())["commands"]
    assert commands == {"full": [f"command {number}" for number in range(4)]}


def test_lines_that_are_not_run_again_stay_in_the_record(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_study(_: str, *, variants: str, **options: Any) -> Study:
        part = study_of(slope={"eager": 100.0, "flat": 7.0, "again": 50.0}[variants])
        name = "eager" if variants == "again" else variants
        return replace(
            part,
            points=tuple(replace(p, variant=name) for p in part.points),
            laws=tuple(replace(one, variant=name) for one in part.laws),
            cards=(),
        )

    monkeypatch.setattr(script, "study", fake_study)
    for variants in ("eager", "flat", "again"):
        script.run(
            parts=["encoder"],
            settings={},
            variants=variants,
            sizes="1M",
            on="fake",
            repeats=1,
            output=tmp_path / "record.json",
        )
        if variants == "flat":
            command = json.loads((tmp_path / "record.json").read_text())["commands"]["encoder"]
            assert len(command) == 2 and all("benchmarks/operator/memory.py" in one for one in command)
    laws = script.read(tmp_path / "record.json")["encoder"].laws
    slopes = {one.variant: one.slope_bytes_per_point for one in laws if one.mode == "train"}
    assert slopes == {"flat": 7.0, "eager": 50.0}


def test_a_line_that_fails_and_is_run_again_has_the_verdict_of_the_second_run(script: Any) -> None:
    def part(name: str, *, gate: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> Study:
        one = study_of(slope=7.0)
        return replace(
            one,
            points=tuple(replace(p, variant=name) for p in one.points),
            laws=tuple(replace(law, variant=name) for law in one.laws),
            cards=(),
            gate=gate,
            notes=notes,
            passed=not gate,
        )

    flat = part("flat", gate=("flat train: declared flat, but it grows",), notes=("flat infer is flat",))
    again = part("flat", notes=("flat train is flat",))
    joined = script.with_earlier_lines(again, flat)
    assert joined.passed and joined.gate == () and joined.notes == ("flat train is flat",)
    # Verdicts of other lines stay, also of those whose names end or begin in the same way.
    for other in ("flat[channels=32]", "not-flat"):
        gate = (f"{other} train: it grows",)
        joined = script.with_earlier_lines(again, part(other, gate=gate, notes=(f"see {other} infer",)))
        assert not joined.passed and joined.gate == gate
        assert joined.notes == (f"see {other} infer", "flat train is flat")
