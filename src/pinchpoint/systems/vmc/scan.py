"""Energies along a bond: one run per length, each started from the network of the previous length; resumable.

DIR/bond-1.4000 is the run for that length, with its eval.json; DIR/scan.csv, scan.png and scan.json cover all
lengths. Finished lengths are not computed again.
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_folder, json_fault, make_folder, parse_json, write_text
from pinchpoint.systems.common.folders import refuse_others
from pinchpoint.systems.common.training.runs import CONFIG
from pinchpoint.systems.common.training.training_loop import Report
from pinchpoint.systems.vmc.analysis.bond_curve import Minimum, find_minimum
from pinchpoint.systems.vmc.analysis.plots import draw_scan
from pinchpoint.systems.vmc.analysis.statistics import LARGEST_RHAT
from pinchpoint.systems.vmc.data.spins import GroundState, ground_state
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.evaluate import SAMPLES, evaluate
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.optimization.programs import ProgramStore
from pinchpoint.systems.vmc.settings import Settings
from pinchpoint.systems.vmc.train import train
from pinchpoint.systems.vmc.training.records import Evaluation, Scan

RECORD, TABLE, PICTURE, EVALUATION = "scan.json", "scan.csv", "scan.png", "eval.json"
COLUMNS = ("bond_bohr", "energy_ha", "error_ha", "variance", "acceptance", "rhat", "steps", "run")
MOST_LENGTHS = 200

# Called with the number of the length, the number of lengths, the length in bohr, and the report of its run.
ScanProgress = Callable[[int, int, float, Report], None]


def scan(
    molecule: str | Path | System,
    output: str | Path,
    *,
    bonds: str | tuple[float, ...],
    net: str | None = None,
    spin: int | None = None,
    charge: int | None = None,
    pseudopotential: str | None = None,
    follow: int | None = None,
    samples: int = SAMPLES,
    device: str = "auto",
    budget: str | int | None = None,
    net_changes: Mapping[str, Any] | None = None,
    pretrain: int | None = None,
    orbitals: str | Path | None = None,
    progress: ScanProgress | None = None,
    **choices: Any,
) -> Scan:
    """Train and evaluate a molecule of two atoms, or a chain, at every bond length.

    bonds: "1.0:2.0:5", "1.0,1.4,2.0" or numbers, in bohr. follow: steps for every length after the first, by
    default half as many as for the first. choices: fields of `Settings`. The same call resumes a scan that
    was stopped.
    """
    start = time.perf_counter()
    lengths = parse_bonds(bonds) if isinstance(bonds, str) else check_bonds(bonds, str(bonds))
    changes = {name: value for name, value in choices.items() if value is not None}
    kind: dict[str, Any] = {"charge": charge or 0, "pseudopotential": pseudopotential}
    system_of(molecule, spin=spin, bond=lengths[0], **kind)  # refuses what has no bond
    state = ground_state(molecule, spin=spin, **kind)
    systems = [system_of(molecule, spin=state.system.spin, bond=length, **kind) for length in lengths]
    settings = Settings.preset(net or "small", electrons=systems[0].electrons, **changes)
    NetConfig.preset(net or "small", **(net_changes or {}))
    if follow is not None and follow < 1:
        raise BadInput(f"--follow {follow} is not a number of steps.", hint="Set --follow to at least 1.")
    later = follow or -(-settings.steps // 2)
    folder = check_folder(output)
    refuse_others(folder, own=RECORD, hint="Choose another folder for the scan with -o.")
    make_folder(folder)
    if progress is not None:
        progress(1, len(lengths), lengths[0], Report("electrons", 1, 1, note=f"electrons: {state.text()}"))
    points: list[dict[str, Any]] = []
    store = ProgramStore()  # programs take the positions of the nuclei as inputs: all lengths share them
    before: Path | None = None
    for number, (length, system) in enumerate(zip(lengths, systems, strict=True), start=1):
        run = folder / f"bond-{length:.4f}"

        def tell(report: Report, number: int = number, length: float = length) -> None:
            if progress is not None:
                progress(number, len(lengths), length, report)

        own = changes if before is None else {**changes, "steps": later, **_without_adam(settings)}
        options = {"net": net, "net_changes": net_changes, "device": device, "budget": budget}
        exists = (run / CONFIG).exists()
        evaluation = _finished(run, own.get("steps", settings.steps)) if exists else None
        if evaluation is None:
            first = before is None
            train(
                system,
                run,
                resume=exists,
                progress=tell,
                start_from=None if exists else before,
                pretrain=pretrain if first else None,
                orbitals=orbitals if first else None,
                store=store,
                **options,
                **own,
            )
            evaluation = evaluate(
                run,
                run / EVALUATION,
                samples=samples,
                device=device,
                store=store,
                progress=lambda stage, done, total: tell(Report("evaluate", done, total, note=stage)),
            )
        points.append(_point(length, evaluation, run))
        before = run
        _write(folder, state, points, complete=False, seconds=time.perf_counter() - start)
    return _write(folder, state, points, complete=True, seconds=time.perf_counter() - start)


def parse_bonds(text: str) -> tuple[float, ...]:
    """Parse `1.0:2.0:5`, five lengths from 1 to 2 bohr, or a list such as `1.0,1.4`."""
    parts = text.split(":")
    try:
        if len(parts) == 1:
            return check_bonds(tuple(float(part) for part in text.split(",")), text)
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError):
        low, high, count = math.nan, math.nan, 0
    if not (len(parts) == 3 and 2 <= count <= MOST_LENGTHS and math.isfinite(low) and math.isfinite(high)):
        raise _no_bonds(text)
    return check_bonds(tuple(float(value) for value in np.linspace(low, high, count)), text)


def check_bonds(bonds: tuple[float, ...], text: str) -> tuple[float, ...]:
    """Return the lengths; raise BadInput if there are none, too many, or two that are equal."""
    rounded = [f"{bond:.4f}" for bond in bonds]
    if (
        not 1 <= len(bonds) <= MOST_LENGTHS
        or not all(map(math.isfinite, bonds))
        or len(set(rounded)) < len(rounded)
    ):
        raise _no_bonds(text)
    return bonds


def _no_bonds(text: str) -> BadInput:
    return BadInput(
        f"{text!r:.60} is not a list of bond lengths.",
        hint="Write FROM:TO:COUNT in bohr, such as 1.0:2.0:5, or a list such as 1.0,1.4,2.0.",
    )


def _without_adam(settings: Settings) -> dict[str, Any]:
    """Return the change that lets SPRING start at once: a trained network needs no steps by Adam."""
    return {"adam_steps": 0} if settings.optimizer == "adam+spring" else {}


def _finished(run: Path, steps: int) -> Evaluation | None:
    """Return the evaluation of a run that has finished all of its steps; None for other runs."""
    path = run / EVALUATION
    if not path.is_file():
        return None
    try:
        evaluation = Evaluation.from_dict(parse_json(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(
            f"{path} is damaged: {json_fault(error)}.", hint=f"Remove {run}, and scan again."
        ) from error
    return evaluation if evaluation.step >= steps else None


def _point(length: float, evaluation: Evaluation, run: Path) -> dict[str, Any]:
    return {
        "bond": length,
        "energy_ha": evaluation.energy_ha,
        "error_ha": evaluation.error_ha,
        "variance": evaluation.variance,
        "acceptance": evaluation.acceptance,
        "rhat": evaluation.rhat,
        "steps": evaluation.step,
        "run": run.name,
        "reference_ha": evaluation.reference_ha,
    }


def _write(
    folder: Path, state: GroundState, points: list[dict[str, Any]], *, complete: bool, seconds: float
) -> Scan:
    """Write scan.csv, scan.png and scan.json with the points so far."""
    name = state.system.name
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in points:
        values = [f"{point['bond']:.6g}", f"{point['energy_ha']:.8f}", f"{point['error_ha']:.8f}"]
        values += [f"{point[key]:.6g}" for key in ("variance", "acceptance", "rhat")]
        writer.writerow([*values, point["steps"], point["run"]])
    table = write_text(folder / TABLE, text.getvalue())
    ordered = sorted(points, key=lambda point: point["bond"])
    columns = ("bond", "energy_ha", "error_ha")
    bonds, energies, errors = ([point[key] for point in ordered] for key in columns)
    # The error bars of walkers that have not mixed are too small for a fit.
    mixed_points = [point for point in ordered if point["rhat"] <= LARGEST_RHAT]
    low = find_minimum(*([point[key] for point in mixed_points] for key in columns))
    minimum = low if isinstance(low, Minimum) else None
    known = next(
        ((point["bond"], point["reference_ha"]) for point in ordered if point["reference_ha"] is not None),
        None,
    )
    picture = draw_scan(
        folder / PICTURE,
        bonds,
        energies,
        errors,
        is_mixed=[point["rhat"] <= LARGEST_RHAT for point in ordered],
        lowest=minimum,
        reference=known,
        title=f"{name} along its bond",
    )
    record = Scan(
        target=name,
        points=tuple(points),
        lowest_bond=None if minimum is None else minimum.bond,
        lowest_ha=None if minimum is None else minimum.energy_ha,
        lowest_bond_error=None if minimum is None else minimum.bond_error,
        lowest_error_ha=None if minimum is None else minimum.energy_error_ha,
        curve=None if minimum is None else asdict(minimum),
        no_minimum=low if isinstance(low, str) else "",
        seconds=seconds,
        complete=complete,
        up=state.system.up,
        down=state.system.down,
        spin_reason=state.why,
        files=(table.name, picture.name),
    )
    record.save(folder / RECORD)
    return record
