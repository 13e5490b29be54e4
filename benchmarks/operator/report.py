"""The comparison as a page: errors per seed, targets, sizes, times and the trials of tuning."""

from __future__ import annotations

from statistics import median
from typing import Any

from parts import Part

from pinchpoint.core.units import show_bytes, show_seconds

MAX_RATIO = 2 / 3  # of pinchpoint's error to GINO's: a third lower
MAX_GROWTH = 1.2  # of the error from coarse to fine bodies


def judge_targets(part: Part) -> list[tuple[str, float | None, float, bool]]:
    """Return each target: name, figure (None if runs are missing), limit, and whether it is met."""
    ours, gino = medians(part, "ours", "test"), medians(part, "gino", "test")
    ratio = ours / gino if ours is not None and gino is not None else None
    growths = [
        growth
        for key in part["runs"]
        if key.startswith("ours:") and (growth := growth_of(part["runs"][key])) is not None
    ]
    targets = (
        ("ours / GINO, median relative L1", ratio, MAX_RATIO),
        ("ours, fine / coarse, worst seed", max(growths, default=None), MAX_GROWTH),
    )
    return [(what, figure, most, figure is not None and figure <= most) for what, figure, most in targets]


def medians(part: Part, name: str, split: str, error: str = "l1") -> float | None:
    """Return the median over the seeds of the median over bodies."""
    values = [
        run[split]["median"][error]
        for key, run in part["runs"].items()
        if key.split(":")[0] == name and split in run
    ]
    return median(values) if values else None


def growth_of(run: dict[str, Any]) -> float | None:
    """Return the median error of the fine bodies divided by that of the same bodies at coarse resolution."""
    if "fine" not in run:
        return None
    coarse = {body["name"]: body["l1"] for body in run["test"]["bodies"]}
    both = [(body["l1"], coarse[body["name"]]) for body in run["fine"]["bodies"] if body["name"] in coarse]
    return median(fine for fine, _ in both) / median(rough for _, rough in both) if both else None


def table(part: Part) -> str:
    about = part["about"]
    data, fine = about["data"], about["data"]["fine"]
    lines = [
        "# pinchpoint's operator (ours) compared with neuralop's GINO",
        "",
        f"{data['train']} training and {data['test']} test bodies with about {data['panels']:,} panels"
        + (f"; {fine['test']} test bodies also with {fine['panels']:,}" if fine else "")
        + f". {about['steps']:,} steps of one body, loss: relative {about['loss'].upper()}.",
        "",
        "| model | seed | parameters | relative L1 | relative L2 | L1 by area | L1, fine | fine / coarse "
        "| step | peak |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, run in sorted(part["runs"].items()):
        name, _, seed = key.partition(":")
        at, growth = run["test"]["median"], growth_of(run)
        fine_columns = f"{run['fine']['median']['l1']:.2%} | {growth:.2f}" if growth is not None else "- | -"
        errors = f"{at['l1']:.2%} | {at['l2']:.2%} | {at['l1_by_area']:.2%}"
        lines.append(
            f"| {name} | {seed} | {run['parameters']:,} | {errors} | {fine_columns} "
            f"| {show_seconds(run['step_s'])} | {show_bytes(run['peak_bytes'])} |"
        )
    steps = (
        "; interleaved timings are below"
        if part["times"]
        else ", which is not a timing if processes shared the device"
    )
    lines += [
        "",
        f"Errors are medians over the test bodies. `step` is the mean of the whole training{steps};",
    ]
    lines += ["`peak` is the memory of training without bodies and weights.", ""]
    lines += ["| target | figure | at most | |", "|---|---|---|---|"]
    for what, figure, most, holds in judge_targets(part):
        verdict = "open" if figure is None else "met" if holds else "missed"
        lines.append(f"| {what} | {'-' if figure is None else f'{figure:.3f}'} | {most:.3f} | {verdict} |")
    if part["times"]:
        lines += [
            "",
            "| training step on one test body | median | 95 % interval | runs |",
            "|---|---|---|---|",
        ]
        for name, timing in part["times"].items():
            if "median_s" in timing:
                interval = f"{show_seconds(timing['low_s'])} to {show_seconds(timing['high_s'])}"
                lines.append(
                    f"| {name} | {show_seconds(timing['median_s'])} | {interval} | {timing['runs']} |"
                )
        differ = part["times"].get("reduces_differ")
        if differ:
            lines += [
                "",
                f"GINO's own reduce and the vectorised one differ by {differ['output']:.1e} in the output "
                f"and {differ['gradients']:.1e} in the gradients (relative L2).",
            ]
    if part["tuning"]:
        lines += ["", "| trial with seed 0, on held-back training bodies | relative L1 |", "|---|---|"]
        for key, trial in part["tuning"].items():
            lines.append(
                f"| {key} | {trial['l1']:.2%} |" if "l1" in trial else f"| {key} | {trial['refused']} |"
            )
        lines += (
            [
                "",
                f"Result of tuning: ours lr {part['chosen']['ours']['lr']:g}; "
                f"GINO lr {part['chosen']['gino']['lr']:g}, "
                f"{part['chosen']['gino']['choices']}.",
            ]
            if part["chosen"]
            else []
        )
    machines = "; ".join(
        f"{m.get('gpu') or m['platform']}, Python {m['python']}, {m['versions']}" for m in part["machines"]
    )
    lines += [
        "",
        f"Created {part['created']} on {machines} with",
        "",
        *(f"    {command}" for command in part["commands"]),
    ]
    return "\n".join(lines) + "\n"
