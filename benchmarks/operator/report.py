"""The comparison as a page: errors per seed, the bars, sizes, times and what tuning tried."""

from __future__ import annotations

from statistics import median
from typing import Any

from parts import Part

from pinchpoint.core.units import show_bytes, show_seconds

LOWER = 2 / 3  # ours over GINO's, at most: a third lower
GROWTH = 1.2  # fine over coarse, at most


def judged(part: Part) -> list[tuple[str, float | None, float, bool]]:
    """Each bar: what it says, the figure (None where runs are missing), the most it may be, whether it holds."""
    ours, gino = medians(part, "ours", "test"), medians(part, "gino", "test")
    ratio = ours / gino if ours is not None and gino is not None else None
    growth = [
        grown
        for key in part["runs"]
        if key.startswith("ours:") and (grown := growth_of(part["runs"][key])) is not None
    ]
    found = (
        ("ours / GINO, median relative L1", ratio, LOWER),
        ("ours, fine over coarse, worst seed", max(growth, default=None), GROWTH),
    )
    return [(what, figure, most, figure is not None and figure <= most) for what, figure, most in found]


def medians(part: Part, name: str, split: str, error: str = "l1") -> float | None:
    """Over the seeds, of the median over bodies."""
    found = [
        run[split]["median"][error]
        for key, run in part["runs"].items()
        if key.split(":")[0] == name and split in run
    ]
    return median(found) if found else None


def growth_of(run: dict[str, Any]) -> float | None:
    """Median error of the fine bodies over that of the same bodies coarse."""
    if "fine" not in run:
        return None
    coarse = {body["name"]: body["l1"] for body in run["test"]["bodies"]}
    both = [(body["l1"], coarse[body["name"]]) for body in run["fine"]["bodies"] if body["name"] in coarse]
    return median(fine for fine, _ in both) / median(rough for _, rough in both) if both else None


def table(part: Part) -> str:
    about = part["about"]
    data, fine = about["data"], about["data"]["fine"]
    lines = [
        "# ours against neuralop's GINO",
        "",
        f"{data['train']} bodies to train, {data['test']} to test, about {data['panels']:,} panels"
        + (f"; {fine['test']} test bodies again at {fine['panels']:,}" if fine else "")
        + f". {about['steps']:,} steps of one body, loss: relative {about['loss'].upper()}.",
        "",
        "| model | seed | parameters | relative L1 | relative L2 | L1 by area | L1, fine | fine / coarse | step | peak |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, run in sorted(part["runs"].items()):
        name, _, seed = key.partition(":")
        at, grown = run["test"]["median"], growth_of(run)
        beyond = f"{run['fine']['median']['l1']:.2%} | {grown:.2f}" if grown is not None else "- | -"
        lines.append(
            f"| {name} | {seed} | {run['parameters']:,} | {at['l1']:.2%} | {at['l2']:.2%} | {at['l1_by_area']:.2%} | {beyond} "
            f"| {show_seconds(run['step_s'])} | {show_bytes(run['peak_bytes'])} |"
        )
    timed = ", steps in turn are below" if part["times"] else ", no timing where processes shared the device"
    lines += ["", f"Medians over the test bodies. `step` is the mean of the whole training{timed};"]
    lines += ["`peak` is what training takes beside bodies and weights.", ""]
    lines += ["| bar | figure | at most | |", "|---|---|---|---|"]
    for what, figure, most, holds in judged(part):
        verdict = "open" if figure is None else "holds" if holds else "missed"
        lines.append(f"| {what} | {'-' if figure is None else f'{figure:.3f}'} | {most:.3f} | {verdict} |")
    if part["times"]:
        lines += [
            "",
            "| a training step, one test body | median | 95 % interval | runs |",
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
                f"GINO's own reduce and the vectorised one differ by {differ['output']:.1e} in the output and "
                f"{differ['gradients']:.1e} in the gradients (relative L2).",
            ]
    if part["tuning"]:
        lines += ["", "| tried, seed 0, on training bodies held back | relative L1 |", "|---|---|"]
        for key, tried in part["tuning"].items():
            lines.append(
                f"| {key} | {tried['l1']:.2%} |" if "l1" in tried else f"| {key} | {tried['refused']} |"
            )
        lines += (
            [
                "",
                f"Chosen: ours lr {part['chosen']['ours']['lr']:g}; GINO lr {part['chosen']['gino']['lr']:g}, "
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
        f"Made {part['created']} on {machines} by",
        "",
        *(f"    {command}" for command in part["commands"]),
    ]
    return "\n".join(lines) + "\n"
