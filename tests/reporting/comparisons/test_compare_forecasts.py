"""Two forecasts compared: every number is checked against one counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinchpoint import compare
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Forecast, Line
from pinchpoint.reporting.comparisons.section import entry

MIB = 2**20


def forecast(**changes: object) -> Forecast:
    values: dict[str, object] = {
        "target": "/home/ada/one/train.py",
        "framework": "torch",
        "method": "fake tensors",
        "mode": "train",
        "size": None,
        "variant": None,
        "peak_allocated_bytes": 100 * MIB,
        "peak_reserved_bytes": 120 * MIB,
        "workspace_bytes": 0,
        "context_bytes": 500 * MIB,
        "total_bytes": 620 * MIB,
        "breakdown": {"weights": 20 * MIB, "activations": 80 * MIB},
        "lines": (
            Line("/home/ada/one/train.py", 7, 60 * MIB, "forward", "h = torch.relu(layer(x))"),
            Line("/home/ada/one/train.py", 7, 10 * MIB, "backward", "h = torch.relu(layer(x))"),
            Line("/home/ada/one/train.py", 9, 30 * MIB, "forward", "x = torch.randn(64, 10)"),
        ),
        "modules": ({"name": "Net.head", "count": 1, "bytes_each": 40 * MIB, "bytes": 40 * MIB},),
        "timeline": ((0, 0, "data"), (1, 100 * MIB, "forward")),
        "fits": {"small": True, "middle": True, "large": False},
        "margin_bytes": 0,
        "card": "middle",
        "steps": 2,
        "machine": {},
    }
    return Forecast(**{**values, **changes})  # pyright: ignore[reportArgumentType]


AFTER = forecast(
    target="/tmp/ci/two/train.py",
    peak_allocated_bytes=150 * MIB,
    peak_reserved_bytes=160 * MIB,
    total_bytes=660 * MIB,
    breakdown={"weights": 20 * MIB, "activations": 130 * MIB},
    lines=(
        Line("/tmp/ci/two/train.py", 12, 90 * MIB, "forward", "h = torch.relu(layer(x))"),
        Line("/tmp/ci/two/train.py", 14, 45 * MIB, "forward", "x = torch.randn(96, 10)"),
        Line("/tmp/ci/two/model.py", 3, 15 * MIB, "forward", "return self.head(h)"),
    ),
    modules=({"name": "Net.body", "count": 1, "bytes_each": 55 * MIB, "bytes": 55 * MIB},),
    fits={"small": None, "middle": False, "large": True},
)


def rows(title: str, before: Forecast, after: Forecast) -> dict[str, tuple[float | None, float | None]]:
    table = next(table for table in compare(before, after).tables if table.title == title)
    return {row.name: (row.before, row.after) for row in table.rows}


def test_moved_and_edited_lines_are_matched_by_their_code_in_any_folder():
    assert rows("Source lines at the peak", forecast(), AFTER) == {
        "train.py:12 (was 7)": (70 * MIB, 90 * MIB),
        "train.py:14 (was 9)": (30 * MIB, 45 * MIB),
        "model.py:3": (None, 15 * MIB),
    }


def test_a_script_named_by_a_relative_path_has_its_own_lines_without_folders():
    before, after = forecast(target="train.py"), replace(AFTER, target="../train.py")
    names = list(rows("Source lines at the peak", before, after))
    assert names == ["train.py:12 (was 7)", "train.py:14 (was 9)", "model.py:3"]


def test_peaks_parts_and_modules_are_listed_before_and_after():
    assert rows("Peak", forecast(), AFTER) == {
        "peak allocated": (100 * MIB, 150 * MIB),
        "peak reserved": (120 * MIB, 160 * MIB),
        "total on the card": (620 * MIB, 660 * MIB),
    }
    assert rows("Parts of the peak", forecast(), AFTER) == {
        "activations": (80 * MIB, 130 * MIB),
        "reserved but unused": (20 * MIB, 10 * MIB),
        "context": (500 * MIB, 500 * MIB),
        "weights": (20 * MIB, 20 * MIB),
    }
    assert rows("Modules at the peak", forecast(), AFTER) == {
        "body": (None, 55 * MIB),
        "head": (40 * MIB, None),
    }


def test_the_limits_fail_on_growth_and_on_a_card_that_is_too_small_or_unknown():
    comparison = compare(forecast(), AFTER)
    assert comparison.growth == 0.5
    assert comparison.failures(max_growth=0.5, card="large") == ()
    assert comparison.failures(max_growth=0.05) == (
        "The peak allocated grows by 50.0 %, which is more than 5.0 %.",
    )
    assert comparison.failures(card="middle") == ("It no longer fits middle.",)
    assert comparison.failures(card="small") == ("It is unknown whether it still fits small.",)
    assert compare(AFTER, AFTER).failures(max_growth=0, card="middle") == ("It does not fit middle.",)
    with pytest.raises(BadInput, match="does not say whether rtx9090"):
        comparison.failures(card="rtx9090")


def test_a_higher_upper_bound_counts_as_growth():
    after = forecast(low_bytes=90 * MIB, high_bytes=130 * MIB)
    comparison = compare(forecast(), after)
    assert (comparison.growth, comparison.growth_of) == (pytest.approx(0.3), "upper bound of allocated")
    assert any("overlap" in note for note in comparison.notes)


def test_the_conclusion_names_the_change_its_part_its_line_and_the_cards():
    text = " ".join(compare(forecast(), AFTER).conclusion)
    assert "grows by 50.00 MiB (50.0 %): 100.00 MiB allocated before, 150.00 MiB after" in text
    assert "activations +50.00 MiB" in text
    assert "train.py:12 (was 7)" in text
    assert "no longer fits: middle." in text
    assert "may no longer fit (unknown): small." in text
    assert "now fits: large." in text
    assert compare(AFTER, AFTER).conclusion[0].startswith("The predicted peak is the same")


def test_the_card_that_was_asked_for_is_named_first():
    names = ("a10", "a40", "l4", "l40", "v100", "rtx4090")
    before = forecast(fits=dict.fromkeys(names, False), card="rtx4090")
    conclusion = compare(before, forecast(fits=dict.fromkeys(names, True), card="rtx4090")).conclusion
    assert conclusion[-1] == "It now fits: rtx4090, a10, a40, l4 and 2 more."


def test_the_page_names_both_targets_if_their_names_differ():
    assert entry(compare(forecast(), AFTER)).title == "/tmp/ci/two/train.py"  # another folder alone
    after = replace(AFTER, target="/home/ada/one/train_bf16.py")
    assert entry(compare(forecast(), after)).title == "train.py → train_bf16.py"


def test_other_sizes_targets_and_settings_are_noted():
    notes = compare(forecast(), replace(AFTER, settings={"width": "8"}, mode="infer")).notes
    assert "The mode differs: train before, infer after." in notes
    assert "The setting width differs: none before, 8 after." in notes
    assert any(note.startswith("The target differs: /home/ada/one/train.py") for note in notes)


def test_markdown_keeps_text_of_a_record_from_becoming_markup():
    line = Line("train.py", 1, 5 * MIB, "forward", "a | b  # `x` </td><script>")
    after = forecast(lines=(line,), reasons=("depends on <data> | *maybe*",))
    text = compare(forecast(), after).to_markdown()
    assert "``a \\| b # `x` </td><script>``" in text
    assert "depends on &lt;data&gt; \\| \\*maybe\\*" in text
    table = [row for row in text.splitlines() if row.startswith("| `train.py:1`")]
    assert table == ["| `train.py:1` | - | 5.00 MiB | +5.00 MiB | new | ``a \\| b # `x` </td><script>`` |"]


def test_records_of_different_kinds_are_refused(report_records):
    with pytest.raises(BadInput, match="Cannot compare a forecast with a verdict"):
        compare(forecast(), report_records["verdict"])
