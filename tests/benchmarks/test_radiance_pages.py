"""The page on radiance fields contains the figures of its records."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from pinchpoint.systems.radiance.model.config import PRESETS as FIELDS
from pinchpoint.systems.radiance.settings import PRESETS, Settings

ROOT = Path(__file__).parents[2]
RUNGS = {
    "cars of the same kind": "same",
    "blurred by 1 pixel": "blur 1 px",
    "eight cars, repeated": "collapse",
    "**without wheels**": "no wheels",
    "blurred by 2 pixels": "blur 2 px",
    "grey": "grey",
    "noise of 0.05": "noise 0.05",
}
NAME = "KD-efflite0"


def record(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))


def page() -> str:
    return (ROOT / "docs" / "systems" / "radiance.md").read_text(encoding="utf-8")


def test_the_page_has_the_ladder_and_the_scores_of_the_records() -> None:
    result, text = record("radiance_eight_minutes_h200.json"), page()
    rungs = {rung["rung"]: rung["distances"][NAME] for rung in result["scores"]["ladder"]}
    for label, rung in RUNGS.items():
        assert f"| {label} | {rungs[rung]:.1f} |" in text, label
    scores, training = result["scores"]["evaluation"], result["training"]
    assert f"| **{scores['distances'][NAME]:.1f}** |" in text
    assert f"| generated, enlarged bicubically | {scores['bicubic'][NAME]:.1f} |" in text
    assert f"{training['step']:,} steps in {training['seconds']:.0f} s" in text
    assert f"the render to {scores['projection_residual']:.1e}".replace("e-07", "e-7") in text
    assert f"changes by {scores['consistency']['hue_spread']:.3f} of the colour circle" in text
    second_seed = record("radiance_eight_minutes_seed1_h200.json")["scores"]
    rung = next(rung["distances"][NAME] for rung in second_seed["ladder"] if rung["rung"] == "no wheels")
    value, plain = second_seed["evaluation"]["distances"][NAME], second_seed["evaluation"]["bicubic"][NAME]
    others = f'"without wheels" has {rung:.1f} and bicubic enlargement {plain:.1f}'
    assert f"the distance is {value:.1f}, where {others}" in text


def test_the_page_has_the_distances_with_aligned_patches_of_the_records() -> None:
    text = page()
    runs = [
        record(f"radiance_eight_minutes_{name}h200.json")
        for name in ("", "seed1_", "on_pixels_", "on_pixels_seed1_")
    ]
    best = [(result["training"]["validation"], result["training"]["best_step"]) for result in runs]
    assert f"those of step {best[0][1]:,} were the nearest, with a distance of {best[0][0]:.1f}," in text
    assert f"weights of step {best[1][1]:,}, with a distance of {best[1][0]:.1f} to the training" in text
    assert f"the last ones have {runs[1]['distances'][-1][NAME]:.1f}" in text
    packaged = ROOT / "src/pinchpoint/systems/radiance/model/packaged/cars.json"
    step = json.loads(packaged.read_text(encoding="utf-8"))["step"]
    assert runs[0]["scores"]["evaluation"]["step"] == best[0][1] == step
    scores = [result["scores"]["evaluation"] for result in runs[2:]]
    first, second = (score["distances"][NAME] for score in scores)
    assert f"with both seeds: {first:.1f} ([record]" in text and f"and {second:.1f} ([seed 1]" in text
    assert f"smallest distances during training were {best[2][0]:.1f} and {best[3][0]:.1f}." in text
    bicubic = "bicubic enlargement the distances are {:.1f} and {:.1f},"
    assert bicubic.format(*(score["bicubic"][NAME] for score in scores)) in text


def test_the_page_has_the_distances_of_meshes_of_invented_cars_of_the_record() -> None:
    result = record("radiance_mesh_packaged_cpu.json")["invented"]
    made, drawn = (
        sum(row["all"] for row in result[name]) / len(result[name]) for name in ("generated", "drawn")
    )
    assert len(result["generated"]) == len(result["drawn"]) == 6 and result["among"] == 40
    assert all(row["watertight"] for row in result["generated"])
    text = (
        f"on average {made:.3f} from the nearest of 40 drawn cars, where six other drawn cars are {drawn:.3f}"
    )
    assert text in page()


def test_the_tuned_preset_has_the_settings_of_the_recorded_run() -> None:
    result = record("radiance_eight_minutes_h200.json")["training"]["settings"]
    settings = Settings(**{**PRESETS["tuned"], "samples": 24, "bound": 1.0})  # as in the page's command
    assert "--set bound=1 --set haze=0.05 --samples 24" in page()  # haze affects whole images only
    assert all(result["model"][name] == value for name, value in FIELDS["tuned"].items())
    for name in (
        "samples",
        "bound",
        "whole",
        "edge",
        "batch",
        "optimizer",
        "lr",
        "lr_d",
        "r1",
        "r1_reduction",
        "critic_norm",
        "critic_bias",
        "sr_weight",
    ):
        assert result[name] == getattr(settings, name), name


def test_the_page_has_the_times_and_peaks_of_the_field_of_the_record() -> None:
    result, text = record("radiance_field_h200.json"), page()
    for row in result["rows"]:
        replayed, over = (
            row["replayed"],
            "{:.2f} [{:.2f}, {:.2f}]".format(*row["replayed"]["over_folded_bf16"]),
        )
        peak = f"{row['measured_bytes'] / 2**30:.2f} GiB | {row['predicted_off']:+.2%}"
        assert (
            f"| {row['row']} | {1e3 * row['seconds']:.1f} ms | {1e3 * replayed['seconds']:.2f} ms | "
            f"{over} | {peak} |" in text
        )
    iteration = result["iteration"]
    assert (
        f"takes {1e3 * iteration['seconds']:.1f} ms ({iteration['steps_per_s']:.1f} iterations per second)"
        in text
    )
    assert f"arithmetic of the folded form takes {1e3 * result['floor_s']:.2f} ms" in text
    (launched,) = (bar for bar in result["verdicts"] if "launched" in bar["bar"])
    assert "{found:.2f} [{low:.2f}, {high:.2f}]".format(**launched) in text
    assert {bar["verdict"] for bar in result["verdicts"]} == {"held"}


def test_the_page_has_the_trials_of_the_record() -> None:
    rows = record("radiance_trials_h200.json")["rows"]

    def distance(**expected: object) -> int:
        choice = {
            "optimizer": "rmsprop",
            "lr_d": None,
            "r1": 1.0,
            "critic_norm": None,
            "point_octaves": 10,
            **expected,
        }
        (row,) = (
            row
            for row in rows
            if row["choices"].get("samples") == 32
            and "width" not in row["choices"]["model"]
            and choice
            == {
                "optimizer": row["choices"].get("optimizer", "rmsprop"),
                "lr_d": row["choices"].get("lr_d"),
                "r1": row["choices"]["r1"],
                "critic_norm": row["choices"].get("critic_norm"),
                "point_octaves": row["choices"]["model"].get("point_octaves", 10),
            }
        )
        return round(row[NAME])

    adam = {"optimizer": "adam", "lr_d": 2e-4}
    text = page()
    assert f"Adam together with 7 octaves (KD {distance(**adam, point_octaves=7)})" in text
    assert f"with 10 octaves, Adam has {distance(**adam)} and RMSprop {distance()}" in text
    assert f"has {distance(point_octaves=7)}. Starting from Adam" in text
    assert f"changed little ({distance(**{**adam, 'lr_d': 5e-4}, point_octaves=7)})" in text
    weaker, bare = (
        distance(**adam, r1=0.2, point_octaves=7),
        distance(**adam, critic_norm="none", point_octaves=7),
    )
    assert f"made it worse ({weaker} and {bare})" in text


def test_the_page_has_the_times_and_decibels_of_interpolated_views() -> None:
    result, text = record("radiance_views_cpu.json"), page()
    rows = {way: [row for row in result["views"] if row["way"] == way] for way in ("interpolated", "exact")}
    decibels = [value for row in rows["interpolated"] for value in row["psnr_db"]]
    assert f"a PSNR of {min(decibels):.1f} to {max(decibels):.1f} dB" in text and min(decibels) > 35
    first, second = (median(row["views_cpu_s"][at] for row in rows["interpolated"]) for at in (0, 1))
    exact = median(value for row in rows["exact"] for value in row["views_cpu_s"])
    car, exact_car = (median(row["preparing_cpu_s"] for row in rows[way]) for way in rows)
    assert f"a car takes {car:.1f} s, its first view {first:.1f} s, and the second {second:.1f} s" in text
    assert f"exactly, a car takes {exact_car:.1f} s and each view {exact:.1f} s" in text
    pixel, depth = (
        max(value for row in rows["interpolated"] for value in row[name])
        for name in ("largest_pixel_error", "mean_depth_error")
    )
    assert f"differ by up to {pixel:.2f} of black to white, and depths by {depth:.4f} on average" in text
    orbit, render = (one["cpu_s"] for one in result["whole_commands"])
    assert f"takes {orbit:.0f} s of CPU time, and the `render` above {render:.0f} s" in text


def test_the_page_has_the_times_and_errors_of_whole_layers() -> None:
    result, text = record("radiance_layers_h200.json"), page()

    def pair(name: str, key: str, digits: int) -> str:
        return " and ".join(f"{result[name][way][key]:.{digits}f}" for way in ("before", "after"))

    assert f"the replayed step takes {pair('replayed_ms', 'median', 2)} ms" in text
    assert f"a whole iteration {pair('iteration_ms', 'median', 2)} ms" in text
    assert f"the largest error of a gradient beside float64 is {pair('errors', 'largest', 4)}" in text
    iteration = result["iteration_kernels"]["after"]
    assert f"{iteration['count']:,}, take {iteration['total_us'] / 1e3:.1f} ms" in text


def test_the_page_has_the_distances_of_the_planes() -> None:
    result, text = record("radiance_planes_h200.json"), page()
    training, scores = result["training"], result["evaluation"]
    if training["stopped_at"] is None:
        assert f"a run of {training['steps']:,} steps took {training['seconds']:.0f} s on an H200" in text
    else:
        assert f"{training['steps']:,} steps was stopped after {training['stopped_at']:,}" in text
    assert (
        f"of step {scores['step']:,}, have a distance of {scores['distances'][NAME]:.1f} "
        f"({scores['bicubic'][NAME]:.1f} with bicubic enlargement)"
    ) in text
    assert all(command in text for command in result["commands"])


def test_the_page_has_what_the_judge_of_labels_found() -> None:
    result, text = record("radiance_labels_h200.json"), page()
    for label, name in (("body type", "class_accuracy"), ("sector of the view", "view_accuracy")):
        values = (result[part][name] for part in ("chance", "unseen", "generated"))
        assert f"| {label} | {' | '.join(f'{100 * value:.1f} %' for value in values)} |" in text
    count = result["generated"]["images"]
    shares = (result["generated"][name] for name in ("class_accuracy", "view_accuracy"))
    errors = " and ".join(f"{100 * (share * (1 - share) / count) ** 0.5:.1f}" for share in shares)
    assert f"The standard errors over {count} generated images are {errors} percentage points" in text
    assert f"took {result['training']['seconds']:.0f} s on an H200" in text
    assert all(command in text for command in result["commands"])
