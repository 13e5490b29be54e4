"""Cars in eight minutes: the length of a run from its pace, its time limit, and the verdicts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
PIL = pytest.importorskip("PIL.Image", reason="needs pillow")

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


def load_script() -> ModuleType:
    return importlib.import_module("eight_minutes")


def report(step: int, seconds: float, *, total: int = 1000) -> Report:
    return Report("train", step, total, Row(step, 1.0, 1e-3, seconds, 0, None))


def test_the_pace_is_measured_after_the_first_steps_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, requests = load_script(), []

    def train(data: Path, folder: Path, *, progress: Any, **choices: Any) -> None:
        requests.append(choices)
        folder.mkdir()
        for step in range(10, choices["steps"] + 1, 10):
            progress(report(step, 100.0 + (step - script.PACED) / 25 if step >= script.PACED else 3.0 * step))

    monkeypatch.setattr(script, "train", train)
    for _ in range(2):
        value = script.pace(tmp_path, tmp_path / "pace", {"preset": "tiny", "eval_images": 64}, steps=100)
        assert value == pytest.approx(25.0), "the slow first steps do not count"
    assert (
        len(requests) == 1 and requests[0]["steps"] == script.PACED + 100 and requests[0]["eval_images"] == 0
    )


def test_a_run_stops_at_its_limit_with_a_checkpoint_and_resumes_from_it(tmp_path: Path) -> None:
    script = load_script()
    (tmp_path / "cars").mkdir()
    for shade in (50, 150):
        PIL.new("RGB", (32, 32), (shade, 2, 3)).save(tmp_path / "cars" / f"{shade}.png")
    result = script.train_run(tmp_path / "cars", tmp_path / "run", TINY, steps=4, seconds=0.0)
    assert result.step == 1 and not result.complete
    # The resumed run keeps its settings and length, regardless of the new pace.
    result = script.train_run(tmp_path / "cars", tmp_path / "run", {**TINY, "batch": 3}, steps=9, seconds=1e9)
    assert result.step == 4 and result.complete and result.settings["batch"] == 2
    assert script.read_distances(tmp_path / "run") == [], "no distances were requested"
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


def test_the_bars_are_the_rung_without_wheels_the_time_and_the_bicubic_render() -> None:
    script = load_script()

    def verdicts_of(*inputs: Any, seconds: float = 479.0) -> list[str]:
        return [bar["verdict"] for bar in script.verdicts(scores(*inputs), {"seconds": seconds})]

    assert verdicts_of(30.0, 40.0, 38.0) == ["held", "held", "held"]
    assert verdicts_of(39.0, 38.0, 38.0, seconds=500.0) == ["missed", "missed", "missed"]
    assert verdicts_of(30.0, None, 38.0) == ["held", "held"]


@pytest.mark.parametrize(("best_step", "which"), [(4000, "best"), (None, "last")])
def test_the_checkpoint_nearest_to_the_training_images_is_scored(
    best_step: int | None, which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, requests = load_script(), []
    empty = SimpleNamespace(to_dict=dict)
    monkeypatch.setattr(script, "evaluate", lambda *inputs, **options: requests.append(options) or empty)
    monkeypatch.setattr(script, "orbit", lambda *inputs, **options: requests.append(options) or empty)
    monkeypatch.setattr(script, "open_extractor", lambda **options: None)
    monkeypatch.setattr(script, "ladder", lambda *inputs, **options: [])
    settings = SimpleNamespace(work=tmp_path, scored=2, orbits=1, seed=7)
    script.score_run(settings, tmp_path, tmp_path, SimpleNamespace(device="cpu", best_step=best_step), 32)
    assert [options["which"] for options in requests] == [which, which] and all(
        options["seed"] == 7 for options in requests
    )


def test_a_call_ends_with_the_requested_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, path = load_script(), tmp_path / "eight.json"
    command = (
        f"eight_minutes.py {tmp_path / 'work'} --device cpu --preset tiny --size 16 --images 2 --scored 2 "
        f"--until data -o {path}"
    )
    datasets: list[Any] = []
    monkeypatch.setattr(
        script,
        "make_dataset",
        lambda folder, **options: datasets.append((folder.name, options["size"], options["seed"])),
    )
    monkeypatch.setattr(script.sys, "argv", [*command.split(), "--set", "r1=3", "superres=4"])
    assert script.main() == 0
    record = json.loads(path.read_text())
    assert (
        record["choices"]["r1"] == 3.0 and record["training"] is None and list(record["took_s"]) == ["data"]
    )
    assert datasets == [("cars", 64, 0), ("unseen", 64, 1)], (
        "images have the size after super-resolution, and different seeds"
    )
    monkeypatch.setattr(script.sys, "argv", [*command.split(), "--set", "rate=3"])
    assert script.main() == 2
