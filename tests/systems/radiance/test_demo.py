"""The run of the demo: it is short and checked, and a run that does not learn does not pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the radiance fields are torch's")
PIL = pytest.importorskip("PIL.Image", reason="pictures are pillow's")

from pinchpoint.core.errors import TargetFailed  # noqa: E402
from pinchpoint.systems.radiance import demo as module  # noqa: E402
from pinchpoint.systems.radiance.demo import example  # noqa: E402
from pinchpoint.systems.radiance.model.objective import Generator  # noqa: E402


def test_a_short_run_on_a_few_cars_learns_and_writes_a_sheet(tmp_path: Path) -> None:
    reports: list[str] = []
    value = example(
        tmp_path / "cars", device="cpu", steps=10, progress=lambda stage, done, total: reports.append(stage)
    )
    assert value.passed and value.training.step == 10 and value.after < value.before
    assert reports[0] == "cars" and reports.count("steps") == 10
    with PIL.open(value.picture) as sheet:
        assert sheet.size[0] > sheet.size[1] > module.SIDE


def test_a_run_that_does_not_learn_or_has_no_gradient_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, again = (example(tmp_path / "cars", device="cpu", steps=2) for _ in range(2))
    assert (again.before, again.after, again.norms) == (value.before, value.after, value.norms), (
        "again in the same folder"
    )
    good = replace(value, before=2.0, after=1.0, norms=(0.1, 3.0))
    assert good.passed
    for wrong in (
        {"after": 2.0},
        {"after": float("nan")},
        {"norms": (0.0, 3.0)},
        {"norms": (0.1, float("inf"))},
    ):
        assert not replace(good, **wrong).passed
    assert not replace(good, training=replace(good.training, complete=False)).passed

    def detached_forward(self: Generator, *inputs: Any, **options: Any) -> Any:
        images = forward(self, *inputs, **options)
        return images._replace(low=images.low.detach().requires_grad_())

    forward = Generator.forward
    monkeypatch.setattr(Generator, "forward", detached_forward)
    with pytest.raises(TargetFailed, match="parameters of the generator do not get a gradient"):
        example(tmp_path / "cut", device="cpu", steps=2)
