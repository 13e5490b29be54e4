"""Energies along a bond: a run for each length, begun with the network of the length before; resumable.

DIR/bond-1.4000 is the run of that length, with eval.json in it; DIR/scan.csv, scan.png and scan.json are of all. What is done
is not done again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_folder, make_folder, write_text
from pinchpoint.systems.common.folders import refuse_others
from pinchpoint.systems.common.runs import CONFIG
from pinchpoint.systems.common.training_loop import Report
from pinchpoint.systems.vmc.analysis.plots import draw_scan
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.evaluate import SAMPLES, evaluate
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.records import Evaluation, Scan
from pinchpoint.systems.vmc.settings import Settings
from pinchpoint.systems.vmc.train import train

RECORD, TABLE, PICTURE, EVALUATED = "scan.json", "scan.csv", "scan.png", "eval.json"
COLUMNS = ("bond_bohr", "energy_ha", "error_ha", "variance", "acceptance", "rhat", "steps", "run")
MOST = 200  # lengths

Tell = Callable[
    [int, int, float, Report], None
]  # number of the length, how many there are, bohr, what goes on


def scan(
    what: str | Path | System,
    output: str | Path,
    *,
    bonds: str | tuple[float, ...],
    net: str | None = None,
    spin: int | None = None,
    charge: int | None = None,
    follow: int | None = None,
    samples: int = SAMPLES,
    device: str = "auto",
    budget: str | int | None = None,
    net_changes: Mapping[str, Any] | None = None,
    pretrain: int | None = None,
    orbitals: str | Path | None = None,
    progress: Tell | None = None,
    **choices: Any,
) -> Scan:
    """Train and evaluate a molecule of two atoms, or a chain, at every length.

    bonds: "1.0:2.0:5", "1.0,1.4,2.0" or numbers, bohr. follow: steps of every length but the first; half as many where None.
    choices: fields of `Settings`. The same call goes on with a scan that was stopped.
    """
    start = time.perf_counter()
    lengths = parse_bonds(bonds) if isinstance(bonds, str) else checked_bonds(bonds, str(bonds))
    asked = {name: value for name, value in choices.items() if value is not None}
    systems = [system_of(what, spin=spin, charge=charge or 0, bond=length) for length in lengths]
    settings = Settings.preset(net or "small", electrons=systems[0].electrons, **asked)
    NetConfig.preset(net or "small", **(net_changes or {}))
    if follow is not None and follow < 1:
        raise BadInput(f"--follow {follow}", hint="give at least 1 step")
    later = follow or -(-settings.steps // 2)
    folder = check_folder(output)
    refuse_others(folder, own=RECORD, hint="choose a folder of its own for the scan with -o")
    make_folder(folder)
    points: list[dict[str, Any]] = []
    before: Path | None = None
    for number, (length, system) in enumerate(zip(lengths, systems, strict=True), start=1):
        run = folder / f"bond-{length:.4f}"

        def tell(report: Report, number: int = number, length: float = length) -> None:
            if progress is not None:
                progress(number, len(lengths), length, report)

        own = asked if before is None else {**asked, "steps": later, **_without_adam(settings)}
        options = {"net": net, "net_changes": net_changes, "device": device, "budget": budget}
        there = (run / CONFIG).exists()
        found = _done(run, own.get("steps", settings.steps)) if there else None
        if found is None:
            first = before is None
            train(
                system,
                run,
                resume=there,
                progress=tell,
                start_from=None if there else before,
                pretrain=pretrain if first else None,
                orbitals=orbitals if first else None,
                **options,
                **own,
            )
            found = evaluate(
                run,
                run / EVALUATED,
                samples=samples,
                device=device,
                progress=lambda stage, done, total: tell(Report("evaluate", done, total, note=stage)),
            )
        points.append(_point(length, found, run))
        before = run
        _written(folder, systems[0].name, points, complete=False, seconds=time.perf_counter() - start)
    return _written(folder, systems[0].name, points, complete=True, seconds=time.perf_counter() - start)


def parse_bonds(text: str) -> tuple[float, ...]:
    """`1.0:2.0:5` -> five lengths from 1 to 2 bohr; `1.0,1.4` -> those."""
    parts = text.split(":")
    try:
        if len(parts) == 1:
            return checked_bonds(tuple(float(part) for part in text.split(",")), text)
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError):
        low, high, count = math.nan, math.nan, 0
    if not (len(parts) == 3 and 2 <= count <= MOST and math.isfinite(low) and math.isfinite(high)):
        raise _no_bonds(text)
    return checked_bonds(tuple(float(value) for value in np.linspace(low, high, count)), text)


def checked_bonds(bonds: tuple[float, ...], given: str) -> tuple[float, ...]:
    """Refuse no lengths, too many, and two that are the same."""
    rounded = [f"{bond:.4f}" for bond in bonds]
    if not 1 <= len(bonds) <= MOST or not all(map(math.isfinite, bonds)) or len(set(rounded)) < len(rounded):
        raise _no_bonds(given)
    return bonds


def _no_bonds(text: str) -> BadInput:
    return BadInput(
        f"{text!r:.60} are no lengths of a bond",
        hint="write FROM:TO:COUNT in bohr, such as 1.0:2.0:5, or 1.0,1.4,2.0",
    )


def _without_adam(settings: Settings) -> dict[str, Any]:
    """A network that is warm needs no warm start: SPRING from its first step on, where the run has SPRING."""
    return {"adam_steps": 0} if settings.optimizer == "adam+spring" else {}


def _done(run: Path, steps: int) -> Evaluation | None:
    """The evaluation of a run that has taken its steps; None where it is not whole."""
    path = run / EVALUATED
    if not path.is_file():
        return None
    found = Evaluation.from_dict(json.loads(path.read_text(encoding="utf-8")))
    return found if found.step >= steps else None


def _point(length: float, found: Evaluation, run: Path) -> dict[str, Any]:
    return {
        "bond": length,
        "energy_ha": found.energy_ha,
        "error_ha": found.error_ha,
        "variance": found.variance,
        "acceptance": found.acceptance,
        "rhat": found.rhat,
        "steps": found.step,
        "run": run.name,
        "reference_ha": found.reference_ha,
    }


def _written(
    folder: Path, name: str, points: list[dict[str, Any]], *, complete: bool, seconds: float
) -> Scan:
    """scan.csv, scan.png and scan.json of the points there are."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in points:
        values = [f"{point['bond']:.6g}", f"{point['energy_ha']:.8f}", f"{point['error_ha']:.8f}"]
        values += [f"{point[key]:.6g}" for key in ("variance", "acceptance", "rhat")]
        writer.writerow([*values, point["steps"], point["run"]])
    table = write_text(folder / TABLE, text.getvalue())
    ordered = sorted(points, key=lambda point: point["bond"])
    bonds, energies, errors = ([point[key] for point in ordered] for key in ("bond", "energy_ha", "error_ha"))
    low = lowest(bonds, energies)
    known = next(
        ((point["bond"], point["reference_ha"]) for point in ordered if point["reference_ha"] is not None),
        None,
    )
    picture = draw_scan(
        folder / PICTURE, bonds, energies, errors, lowest=low, reference=known, title=f"{name} along its bond"
    )
    made = Scan(
        target=name,
        points=tuple(points),
        lowest_bond=None if low is None else low[0],
        lowest_ha=None if low is None else low[1],
        seconds=seconds,
        complete=complete,
        files=(table.name, picture.name),
    )
    made.save(folder / RECORD)
    return made


def lowest(bonds: list[float], energies: list[float]) -> tuple[float, float] | None:
    """Bond and energy at the bottom of the parabola through the lowest point and its neighbours; None at an end."""
    at = int(np.argmin(energies))
    if not 0 < at < len(bonds) - 1:
        return None
    x = np.array(bonds[at - 1 : at + 2]) - bonds[at]
    curve, slope, height = np.polyfit(x, energies[at - 1 : at + 2], 2)
    bottom = -slope / (2 * curve)
    return float(bonds[at] + bottom), float(height + slope * bottom / 2)
