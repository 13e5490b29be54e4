"""The picture of a training: what its lines, panels and axes say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="pictures are matplotlib's")

from matplotlib.patches import Rectangle

from pinchpoint.systems.vmc.analysis.plots import convergence, draw_convergence, smooth, window

EXACT = -2.0
STEPS = np.arange(1, 401)
ENERGIES = EXACT + np.exp(-STEPS / 40) + 0.004 * np.sin(2.0 * STEPS)
VARIANCES, SECONDS = 0.1 / STEPS, STEPS**1.5 / 80  # steps that take longer and longer, 100 s in all


def test_the_mean_is_about_each_step_and_of_the_last_ones_at_the_end() -> None:
    values = np.array([8.0, 4.0, 0.0, 2.0, 4.0, 9.0])
    assert smooth(values, 3) == pytest.approx(
        [8.0, 4.0, 2.0, 2.0, 5.0, 5.0]
    )  # the last: of 2, 4 and 9, no fewer
    assert smooth(values, 3, by=np.median) == pytest.approx([8.0, 4.0, 2.0, 2.0, 4.0, 4.0])
    assert smooth(values, 1) == pytest.approx(values)
    line = np.arange(50.0)
    assert smooth(line, 11)[:44] == pytest.approx(line[:44])  # a descent is not bent
    assert [window(steps) for steps in (1, 9, 40, 400, 10_000)] == [1, 1, 3, 39, 101]


def test_the_difference_from_the_reference_is_shown_in_mha_with_its_sign_beside_chemical_accuracy() -> None:
    figure = convergence(STEPS, ENERGIES, VARIANCES, SECONDS, exact_ha=EXACT, title="He")
    top, middle, below = figure.axes
    each, mean, zero = middle.get_lines()
    assert np.asarray(each.get_ydata()) == pytest.approx(1e3 * (ENERGIES - EXACT))
    assert np.asarray(mean.get_ydata()) == pytest.approx(1e3 * (smooth(ENERGIES, 39) - EXACT))
    assert middle.get_yscale() == "symlog" and below.get_yscale() == "log" and not np.any(zero.get_ydata())
    (band,) = middle.patches
    assert isinstance(band, Rectangle)
    assert band.get_y() == pytest.approx(-1.6) and band.get_height() == pytest.approx(3.2)
    low, high = middle.get_ylim()
    assert low < -4.0 and high > 970.0  # the scatter below the line, and the first steps
    low, high = top.get_ylim()
    assert low < EXACT < high
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "energy, Ha",
        "energy − reference, mHa",
        "variance, Ha²",
    ]
    assert below.get_xlabel() == "step"


def test_seconds_stand_above_the_steps_that_ended_by_then() -> None:
    figure = convergence(STEPS, ENERGIES, VARIANCES, SECONDS, exact_ha=EXACT, title="He")
    (above,) = figure.axes[0].child_axes
    told = {
        label.get_text(): place
        for label, place in zip(above.get_xticklabels(), above.get_xticks(), strict=True)
    }
    assert above.get_xlabel() == "seconds of training"
    assert told["100"] == pytest.approx(400) and told["20"] == pytest.approx((20 * 80) ** (2 / 3), abs=1)


def test_without_a_reference_there_is_no_difference_to_draw(tmp_path: Path) -> None:
    figure = convergence(STEPS, ENERGIES, VARIANCES, SECONDS, exact_ha=None, title="mine")
    assert [axes.get_ylabel() for axes in figure.axes] == ["energy, Ha", "variance, Ha²"]
    path = draw_convergence(
        tmp_path / "a.png", [1, 2], [-1.0, -1.0], [0.0, 0.0], [0.0, 0.0], exact_ha=-1.0, title="two steps"
    )
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
