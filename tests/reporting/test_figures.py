"""Figures of a Study show what the record contains, and can be read on any machine."""

from __future__ import annotations

import warnings
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from pinchpoint.core.growth_law import law, value
from pinchpoint.core.records import Point, Study
from pinchpoint.reporting.figures import (
    breakdown,
    cards,
    gallery,
    modules,
    peak,
    per_point,
    ratio,
    style,
    theory,
    tradeoff,
)

MIB, GIB = 2**20, 2**30
SIZES = (5_000, 15_000, 45_000, 135_000, 405_000, 1_215_000)
SLOPES = {
    ("eager", "train"): 11_000,
    ("eager", "infer"): 3_000,
    ("chunked", "train"): 90,
    ("chunked", "infer"): 30,
}
SECONDS = {"eager": 1.0, "chunked": 1.25}
LAST_FITS = 1_000_000


def point(variant: str, mode: str, size: int) -> Point:
    peak_bytes = 80 * MIB + SLOPES[variant, mode] * size
    fits = (variant, mode) != ("eager", "train") or size < LAST_FITS
    seconds = SECONDS[variant] * (1e-3 + 1e-7 * size)
    return Point(
        size=size,
        mode=mode,
        variant=variant,
        status="ok" if fits else "oom",
        processed=size if fits else None,
        peak_allocated_bytes=peak_bytes if fits else None,
        peak_reserved_bytes=peak_bytes + 20 * MIB if fits else None,
        time_s=seconds if fits else None,
        time_low_s=0.95 * seconds if fits else None,
        time_high_s=1.1 * seconds if fits else None,
        theory_bytes=round(1.01 * peak_bytes),
        breakdown={"weights": 4 * MIB, "activations": peak_bytes - 70 * MIB, "workspace": 66 * MIB},
        modules=(
            {"name": "net.layers.0", "bytes": peak_bytes // 2},
            {"name": "net.head", "bytes": peak_bytes // 8},
        ),
    )


@pytest.fixture(scope="module")
def study() -> Study:
    points = [point(variant, mode, size) for variant, mode in SLOPES for size in SIZES]
    laws = []
    for variant, mode in SLOPES:
        ran = [p for p in points if (p.variant, p.mode, p.status) == (variant, mode, "ok")]
        laws.append(
            law([p.size for p in ran], [p.peak_allocated_bytes or 0 for p in ran], mode=mode, variant=variant)
        )
    rows = [
        {
            "card": name,
            "memory_bytes": memory,
            "mode": "train",
            "variant": variant,
            "size": size,
            "low": low,
            "high": high,
            "extrapolated": True,
        }
        for name, memory in (("rtx4090", 23 * GIB), ("h100", 79 * GIB))
        for variant, size, low, high in (
            ("eager", 2_000_000, 1_900_000, 2_100_000),
            ("chunked", None, None, None),
        )
    ]
    return Study(
        target="field",
        axis="points",
        on="card:24GiB",
        points=tuple(points),
        laws=tuple(laws),
        passed=True,
        gate=(),
        cards=tuple(rows),
        machine={},
        created="2026-01-01T00:00:00+00:00",
    )


def draw(module, record):
    with style.figure_style():
        figure = module.draw(record)
        assert figure is not None
        figure.canvas.draw()
        return figure


def curves(axes):
    return {tuple(np.ravel(line.get_xdata())): np.ravel(line.get_ydata()) for line in axes.get_lines()}


def text_of(figure) -> str:
    return " | ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def test_every_figure_is_written_as_a_valid_png_and_svg(study):
    files = gallery.draw_all(study)
    assert {name.split(".")[0] for name in files} == set(gallery.drawers())
    assert len(gallery.drawers()) == 8
    for name, data in files.items():
        if name.endswith(".png"):
            assert data.startswith(b"\x89PNG\r\n")
        else:
            assert ET.fromstring(data).tag.endswith("svg")
            assert b"<text" not in data  # letters are outlines, so that no font is needed


def test_the_same_study_gives_the_same_bytes(study, monkeypatch):
    monkeypatch.setattr(gallery, "drawers", lambda: {"peak": peak.draw})
    assert gallery.draw_all(study) == gallery.draw_all(study)


def test_peak_shows_measured_points_and_crosses_at_the_theory_of_sizes_that_ran_out_of_memory(study):
    axes = draw(peak, study).axes[0]
    shown = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.get_lines()]
    for variant, mode in SLOPES:
        ran = [p for p in study.points if (p.variant, p.mode, p.status) == (variant, mode, "ok")]
        assert [(p.size, p.peak_allocated_bytes) for p in ran] in shown
    cross = next(line for line in axes.get_lines() if line.get_label() == "out of memory")
    out = [p for p in study.points if p.status == "oom"]
    assert list(zip(cross.get_xdata(), cross.get_ydata(), strict=True)) == [
        (p.size, p.theory_bytes) for p in out
    ]
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_peak_shows_the_law_its_band_and_the_cards(study):
    axes = draw(peak, study).axes[0]
    fitted = next(each for each in study.laws if (each.variant, each.mode) == ("eager", "train"))
    line = next(each for each in axes.get_lines() if len(each.get_xdata()) == 200)
    assert list(line.get_ydata()) == pytest.approx([value(fitted, size) for size in line.get_xdata()])
    assert len(axes.collections) == len(study.laws)  # a band each
    text = text_of(axes.figure)
    assert "rtx4090 23 GiB" in text
    assert any(list(each.get_ydata()) == [23 * GIB, 23 * GIB] for each in axes.get_lines())


def test_bytes_per_point_are_peaks_divided_by_sizes_with_the_slope_labelled(study):
    figure = draw(per_point, study)
    eager = [p for p in study.points if (p.variant, p.mode, p.status) == ("eager", "train", "ok")]
    shown = curves(figure.axes[0])[tuple(p.size for p in eager)]
    assert list(shown) == pytest.approx([p.peak_allocated_bytes / p.size for p in eager])
    assert "11,000 B" in text_of(figure)


def test_the_ratio_covers_only_sizes_at_which_both_modes_ran(study):
    ratios = ratio.ratios(study)
    assert [size for size, _ in ratios["eager"]] == [size for size in SIZES if size < LAST_FITS]
    size, times = ratios["eager"][0]
    assert times == pytest.approx((80 * MIB + 11_000 * size) / (80 * MIB + 3_000 * size))
    assert f"{ratios['eager'][-1][1]:.2f}" in text_of(draw(ratio, study))


def test_each_bar_of_the_breakdown_adds_up_to_the_whole_peak(study):
    axes = draw(breakdown, study).axes[0]
    tops: dict[float, float] = {}
    for bar in axes.patches:
        tops[bar.get_x()] = max(tops.get(bar.get_x(), 0.0), bar.get_y() + bar.get_height())
    assert list(tops.values()) == pytest.approx([100.0] * 5)


def test_theory_shows_its_error_in_percent_of_what_was_measured(study):
    lower = draw(theory, study).axes[1]
    errors = [y for line in lower.get_lines() if len(line.get_xdata()) > 2 for y in line.get_ydata()]
    assert errors == pytest.approx([1.0] * len(errors), abs=1e-3)


def test_a_fake_study_has_no_theory_to_compare_with(study):
    assert theory.draw(replace(study, on="fake")) is None


def test_the_trade_off_compares_variants_at_the_largest_size_all_of_them_ran(study):
    choices = tradeoff.choices(study)
    assert {p.size for p in choices["train"]} == {405_000}
    assert {p.size for p in choices["infer"]} == {1_215_000}
    text = text_of(draw(tradeoff, study))
    expected = (80 * MIB + 90 * 405_000) / (80 * MIB + 11_000 * 405_000)
    assert f"1.25× time, {expected:.2f}× peak" in text


def test_the_card_figure_shows_sizes_with_intervals_and_omits_cards_without_a_size(study):
    axes = draw(cards, study).axes[0]
    assert any(list(line.get_xdata()) == [1_900_000, 2_100_000] for line in axes.get_lines())
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rtx4090  23 GiB", "h100  79 GiB"]
    assert "2M" in text_of(axes.figure)


def test_modules_are_ranked_at_the_largest_size_of_the_baseline(study):
    assert modules.largest_point(study) == next(
        p for p in study.points if (p.variant, p.mode, p.size) == ("eager", "train", 405_000)
    )
    labels = [label.get_text() for label in draw(modules, study).axes[0].get_yticklabels()]
    assert labels == ["layers.0", "head"]


def test_a_study_with_nothing_to_show_has_no_figures(study):
    failed = Point(1_000, "train", "eager", "failed", reason="no")
    assert gallery.draw_all(replace(study, points=(failed,), laws=(), cards=())) == {}


def test_characters_that_the_font_lacks_and_dollar_signs_are_escaped(study, monkeypatch):
    monkeypatch.setattr(gallery, "drawers", lambda: {"peak": peak.draw})
    record = replace(study, target="水_$x$.py:step_of", axis="點")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of every glyph it cannot draw
        figure = draw(peak, record)
        png = gallery.draw_all(record)["peak.png"]
    assert "\\u6c34" in text_of(figure)
    assert png.startswith(b"\x89PNG")


def test_ticks_are_round_in_the_units_they_are_shown_in(study):
    axes = draw(peak, study).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels() if label.get_text()]
    assert labels
    assert all(
        label.split()[0].isdigit() and label.split()[1] in ("KiB", "MiB", "GiB", "TiB") for label in labels
    )
    assert [label.get_text() for label in axes.get_xticklabels() if label.get_text()][:2] == ["1k", "10k"]


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (64 * MIB, "64 MiB"),
        (int(1.5 * GIB), "1.5 GiB"),
        (1020 * MIB, "1,020 MiB"),
    ],
)
def test_short_bytes_keep_three_digits(size, shown):
    assert style.short_bytes(size) == shown


def test_matplotlib_settings_of_the_user_are_neither_used_nor_changed(study):
    import matplotlib

    with matplotlib.rc_context({"font.size": 30, "axes.formatter.use_locale": True}):
        before = matplotlib.rcParams.copy()
        figure = draw(peak, study)
        assert figure.axes[0].xaxis.label.get_fontsize() == style.RC["axes.labelsize"]
        assert dict(matplotlib.rcParams) == dict(before)


def test_labels_of_similar_ratios_do_not_overlap():
    assert ratio.separate_labels([3.2, 1.0, 1.01, 1.02], gap=0.2) == pytest.approx([3.2, 1.0, 1.2, 1.4])


@pytest.mark.parametrize(("wide", "bands"), [(1.5, 1), (100.0, 0)])
def test_a_band_over_decades_is_not_drawn(study, wide, bands):
    one = study.laws[0]
    band = tuple((size, value(one, size) / wide, value(one, size) * wide) for size in SIZES)
    figure = peak.draw(replace(study, laws=(replace(one, band=band),)))
    assert sum(bool(part.get_paths()) for part in figure.axes[0].collections) == bands
