"""The table of public scripts: `check` of training scripts of other projects, with the times after a fix.

Each script is checked on the machine of the table by a command like

    pinchpoint check gcn.py --pairs 10 --against gcn_fixed.py -o records/gcn.json -- --epochs=5000

that is stored beside its record as `gcn.command`, with the revision of pinchpoint as `gcn.revision`; a remark
may follow it. Then

    PYTHONPATH=src python benchmarks/checking/public_scripts.py records -o public_scripts.json
    PYTHONPATH=src python benchmarks/checking/public_scripts.py --read public_scripts.json    # the table only
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from pinchpoint.core.records import Check, Gain, load
from pinchpoint.core.records.check import show_pairs
from pinchpoint.core.units import show_bytes, show_seconds

# What the scripts are, and what was fixed in them.
SCRIPTS = {
    "nanogpt": (
        "nanoGPT `train.py --compile=False`, GPT-2 124M, batch 12 x 1,024, 4 accumulation steps",
        "`--apply` replaced the deprecated `GradScaler`",
    ),
    "gcn": (
        "PyG `examples/gcn.py`, graph of the size of Cora",
        "by hand: `cached=True`, row numbers in place of masks, one read of all accuracies",
    ),
    "diffusion": (
        "denoising-diffusion-pytorch, `Trainer` as in its README, batch 32 x 128 x 128",
        "by hand: `loss.detach()` in place of `loss.item()`, so that the loss is read once per step",
    ),
}
_ADVICE = 5  # pieces of advice in the record


def collect(folder: Path) -> dict[str, Any]:
    """What the records of a folder say, without their timelines."""
    scripts, machine = {}, {}
    for name in SCRIPTS:
        result = load(folder / f"{name}.json")
        assert isinstance(result, Check), f"{name}.json is not the record of a check."
        trace, forecast = result.trace, result.forecast
        assert trace is not None, f"{name}.json has no profile."
        revision, _, note = (folder / f"{name}.revision").read_text(encoding="utf-8").strip().partition(" ")
        scripts[name] = {
            "command": (folder / f"{name}.command").read_text(encoding="utf-8").strip(),
            "revision": revision,
            "revision_note": note,
            "created": result.created,
            "step_times": trace.step_times,
            "steps": trace.steps,
            "peak_bytes": (trace.memory or {}).get("allocated_bytes"),
            "predicted_bytes": None if forecast is None else forecast.peak_allocated_bytes,
            "predicted_low_bytes": None if forecast is None else forecast.low_bytes,
            "predicted_high_bytes": None if forecast is None else forecast.high_bytes,
            "advice": [_without_folders(asdict(advice)) for advice in result.advice[:_ADVICE]],
            "gain": None if result.gain is None else _without_folders(asdict(result.gain)),
            "notes": list(result.notes),
        }
        machine = trace.machine
    return {"scripts": scripts, "machine": machine}


def _without_folders(value: Any) -> Any:
    """The same values with the names of files in place of their paths."""
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_folders(each) for each in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def table(record: dict[str, Any]) -> str:
    rows = [
        "| script | step | peak measured / predicted | costliest advice | fix | speed-up |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in record["scripts"].items():
        title, fix = SCRIPTS[name]
        costs = [advice for advice in row["advice"] if advice["cost_s"] is not None]
        advice = _advice(costs[0]) if costs else "none with a measured cost"
        peaks = f"{show_bytes(row['peak_bytes'])} / {show_bytes(row['predicted_bytes'])}"
        speedup = "not measured" if row["gain"] is None else _speedup(Gain(**row["gain"]))
        step = show_seconds(row["step_times"]["median_s"])
        rows.append(f"| {title} | {step} | {peaks} | {advice} | {fix} | {speedup} |")
    return "\n".join(rows) + "\n"


def _speedup(gain: Gain) -> str:
    before, after = (show_seconds(median(times)) for times in (gain.before_s, gain.after_s))
    interval = f"{gain.speedup:.3f} [{gain.speedup_low:.3f} to {gain.speedup_high:.3f}]"
    return f"{gain.verdict}: {before} before, {after} after, {interval}; {show_pairs(gain)}"


def _advice(advice: dict[str, Any]) -> str:
    share = "" if advice["share"] is None else f", {advice['share']:.1%}"
    where = f" (`{Path(advice['file']).name}:{advice['line']}`)" if advice["file"] else ""
    return f"{show_seconds(advice['cost_s'])}{share}: {advice['what'].rstrip('.')}{where}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Collect the checks of public scripts.")
    parser.add_argument("folder", nargs="?", type=Path, help="Folder with the records and their commands.")
    parser.add_argument("-o", "--output", type=Path, help="File for the record.")
    parser.add_argument("--read", type=Path, help="Print the table of this record instead of collecting.")
    options = parser.parse_args()
    if (options.folder is None) == (options.read is None):
        parser.error("Give a folder of records, or --read with a record.")
    record = json.loads(options.read.read_text(encoding="utf-8")) if options.read else collect(options.folder)
    if options.output is not None:
        options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(record), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
