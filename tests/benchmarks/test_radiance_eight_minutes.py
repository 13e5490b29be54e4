"""Cars in eight minutes: the length of a run from its pace, the limit that stops it, and its verdicts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")
PIL = pytest.importorskip("PIL.Image", reason="pictures are pillow's")

from pinchpoint.systems.common.training.logs import Row  # noqa: E402
from pinchpoint.systems.common.training.training_loop import Report  # noqa: E402

FOLDER = Path(__file__).parents[2] / "benchmarks" / "radiance"
TINY: dict[str, Any] = {
    "preset": "tiny",
    "size": 32,
    "samples": 4,
    "batch": 2,
    "critic_width": 4,
    "eval_images": 0,
    "device": "cpu",
    "sample_every": 99,
}


def loaded() -> ModuleType:
    return importlib.import_module("eight_minutes")


def report(step: int, seconds: float, *, total: int = 1000) -> Report:
    return Report("train", step, total, Row(step, 1.0, 1e-3, seconds, 0, None))


def test_the_pace_is_that_of_the_steps_after_the_first_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, request = loaded(), []

    def train(data: Path, folder: Path, *, progress: Any, **choices: Any) -> None:
        request.append(choices)
        folder.mkdir()
        for step in range(10, choices["steps"] + 1, 10):
            progress(report(step, 100.0 + (step - script.PACED) / 25 if step >= script.PACED else 3.0 * step))

    monkeypatch.setattr(script, "train", train)
    for _ in range(2):
        value = script.pace(tmp_path, tmp_path / "pace", {"preset": "tiny", "eval_images": 64}, steps=100)
        assert value == pytest.approx(25.0), "the slow first steps do not count"
    assert len(request) == 1 and request[0]["steps"] == script.PACED + 100 and request[0]["eval_images"] == 0


def test_a_run_is_stopped_at_its_limit_with_a_checkpoint_and_goes_on_where_it_was(tmp_path: Path) -> None:
    script = loaded()
    (tmp_path / "cars").mkdir()
    for shade in (50, 150):
        PIL.new("RGB", (32, 32), (shade, 2, 3)).save(tmp_path / "cars" / f"{shade}.png")
    result = script.train_run(tmp_path / "cars", tmp_path / "run", TINY, steps=4, seconds=0.0)
    assert result.step == 1 and not result.complete
    # With its own settings and length, whatever the pace now gives.
    result = script.train_run(tmp_path / "cars", tmp_path / "run", {**TINY, "batch": 3}, steps=9, seconds=1e9)
    assert result.step == 4 and result.complete and result.settings["batch"] == 2
    assert script.read_distances(tmp_path / "run") == [], "no distance was asked for"
    cells = ["2", "0.5", "0.001", "1.0", "7", "61.5", "1", "0", "1"]
    with (tmp_path / "run" / "log.csv").open("a", encoding="utf-8") as log:
        log.write(",".join(cells) + "\n")
    assert script.read_distances(tmp_path / "run") == [{"step": 2, "KD-efflite0": 61.5}]


def scores(value: float, bicubic: float | None, rung: float) -> dict[str, Any]:
    return {
        "evaluation": {
            "distances": {"KD-efflite0": value},
            "bicubic": None if bicubic is None else {"KD-efflite0": bicubic},
        },
        "ladder": [
            {"rung": "grey", "distances": {"KD-efflite0": 1e9}},
            {"rung": "no wheels", "distances": {"KD-efflite0": rung}},
        ],
    }


def test_bars_are_the_rung_without_wheels_the_time_and_the_smooth_render() -> None:
    script = loaded()

    def verdicts_of(*inputs: Any, took: float = 479.0) -> list[str]:
        return [bar["verdict"] for bar in script.verdicts(scores(*inputs), {"seconds": took})]

    assert verdicts_of(30.0, 40.0, 38.0) == ["held", "held", "held"]
    assert verdicts_of(39.0, 38.0, 38.0, took=500.0) == ["missed", "missed", "missed"]
    assert verdicts_of(30.0, None, 38.0) == ["held", "held"]


@pytest.mark.parametrize(("best_step", "which"), [(4000, "best"), (None, "last")])
def test_the_checkpoint_nearest_to_the_images_it_learned_from_is_scored(
    best_step: int | None, which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, request = loaded(), []
    empty = SimpleNamespace(to_dict=dict)
    monkeypatch.setattr(script, "evaluate", lambda *inputs, **how: request.append(how) or empty)
    monkeypatch.setattr(script, "orbit", lambda *inputs, **how: request.append(how) or empty)
    monkeypatch.setattr(script, "open_extractor", lambda **how: None)
    monkeypatch.setattr(script, "ladder", lambda *inputs, **how: [])
    settings = SimpleNamespace(work=tmp_path, scored=2, orbits=1, seed=7)
    script.score_run(settings, tmp_path, tmp_path, SimpleNamespace(device="cpu", best_step=best_step), 32)
    assert [how["which"] for how in request] == [which, which] and all(how["seed"] == 7 for how in request)


def test_a_call_ends_with_the_stage_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, path = loaded(), tmp_path / "eight.json"
    command = (
        f"eight_minutes.py {tmp_path / 'work'} --device cpu --preset tiny --size 16 --images 2 --scored 2 "
        f"--until data -o {path}"
    )
    ordered: list[Any] = []
    monkeypatch.setattr(
        script, "make_dataset", lambda folder, **how: ordered.append((folder.name, how["size"], how["seed"]))
    )
    monkeypatch.setattr(script.sys, "argv", [*command.split(), "--set", "r1=3", "superres=4"])
    assert script.main() == 0
    record = json.loads(path.read_text())
    assert (
        record["choices"]["r1"] == 3.0 and record["training"] is None and list(record["took_s"]) == ["data"]
    )
    assert ordered == [("cars", 64, 0), ("unseen", 64, 1)], (
        "of the size after super-resolution, and of two seeds"
    )
    monkeypatch.setattr(script.sys, "argv", [*command.split(), "--set", "rate=3"])
    assert script.main() == 2
