"""Records survive JSON, are written completely or not at all, and refuse other files."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes, write_text
from pinchpoint.core.records import KINDS, Record, Study, Verdict, load, script_command


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_survives_json(kind: str, samples: dict[str, Record]) -> None:
    record = samples[kind]
    again = type(record).from_json(record.to_json())
    assert again == record
    assert type(again) is type(record)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_record_loads_as_its_own_kind(kind: str, samples: dict[str, Record], tmp_path: Path) -> None:
    path = samples[kind].save(tmp_path / "record.json")
    assert load(path) == samples[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_records_cannot_be_changed(kind: str, samples: dict[str, Record]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        samples[kind].target = "other"  # type: ignore[attr-defined]


def test_the_command_of_a_record_names_files_elsewhere_without_their_folders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks/a.py", "-o", "/elsewhere/a.json", "two words"])
    assert script_command() == "python benchmarks/a.py -o a.json 'two words'"


def test_an_older_reader_skips_keys_it_does_not_know(samples: dict[str, Record]) -> None:
    data = samples["verdict"].to_dict() | {"a_key_of_tomorrow": 1}
    assert Verdict.from_dict(data) == samples["verdict"]


def test_a_value_that_is_not_json_is_never_written(samples: dict[str, Record], tmp_path: Path) -> None:
    broken = dataclasses.replace(samples["verdict"], worst_error=float("nan"))  # type: ignore[type-var]
    with pytest.raises(ValueError, match="not JSON compliant"):
        broken.save(tmp_path / "verdict.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", r"is not a pinchpoint record: it is not JSON \(line 1, column 2\)\."),
        ("[" * 100_000, "is not a pinchpoint record: it is nested too deeply"),
        ('{"kind": ' + "9" * 400 + "}", "is not a pinchpoint record: it has an integer of 400 digits"),
        ("[1, 2]", r"is not a pinchpoint record: it has no kind\."),
        ("{}", r"is not a pinchpoint record: it has no kind\."),
        ('{"kind": "Forecast"}', "is not a pinchpoint record"),
        ('{"kind": "verdict", "schema": 1, "target": "x"}', "damaged verdict record: mode is missing"),
        ('{"kind": "study", "schema": 1, "points": 3}', "damaged study record: target is missing"),
        ('{"kind": "study", "schema": 99}', "has schema 99, but this pinchpoint reads schema 1"),
    ],
)
def test_a_file_that_is_not_a_record_is_refused_by_name(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=says) as caught:
        load(path)
    assert "thing.json" in caught.value.what


def test_a_record_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Cannot read"):
        load(tmp_path / "none.json")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Cannot write"):
        write_text(tmp_path / "missing" / "record.json", "x")
    (tmp_path / "taken").mkdir()
    with pytest.raises(BadInput, match="Cannot write"):
        write_text(tmp_path / "taken", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_writing_replaces_the_whole_old_file_and_keeps_it_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("a much longer old text", encoding="utf-8")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    old = os.umask(0o022)
    try:
        write_bytes(path, b"newer")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_shows_as_an_escaped_table_in_a_notebook(kind: str, samples: dict[str, Record]) -> None:
    record = dataclasses.replace(samples[kind], target="<script>x</script>")  # type: ignore[type-var]
    page = record._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    for label, _ in record.summary():
        assert label in page


def test_json_keeps_bytes_as_integers(samples: dict[str, Record]) -> None:
    big = dataclasses.replace(samples["plan"], budget_bytes=2**53 + 1)  # type: ignore[type-var]
    assert json.loads(big.to_json())["budget_bytes"] == 2**53 + 1


def test_a_speed_up_under_one_is_printed_as_a_slow_down(samples: dict[str, Record]) -> None:
    verdict = samples["verdict"]
    assert isinstance(verdict, Verdict)
    slower = dataclasses.replace(verdict, speedup=0.5, speedup_low=0.4, speedup_high=0.8)
    assert ("slow-down", "2.00 [1.25, 2.50]") in slower.summary()
    faster = dataclasses.replace(verdict, speedup=2.0, speedup_low=1.9, speedup_high=2.1)
    assert ("speed-up", "2.00 [1.90, 2.10]") in faster.summary()


def test_a_slope_is_given_per_thing_that_the_axis_counts(samples: dict[str, Record]) -> None:
    study = samples["study"]
    assert isinstance(study, Study)
    assert study.unit == "point"
    assert dataclasses.replace(study, axis="size").unit == "unit of size"


@pytest.mark.parametrize(("high_bytes", "is_shown"), [(10**9 + 1, False), (2 * 10**9, True)])
def test_an_interval_whose_ends_look_the_same_is_not_shown(
    samples: dict[str, Record], high_bytes: int, is_shown: bool
) -> None:
    forecast = dataclasses.replace(samples["forecast"], low_bytes=10**9, high_bytes=high_bytes)  # type: ignore[call-arg]
    assert ("allocated between" in dict(forecast.summary())) is is_shown
