"""The folder of a run: refused, begun, taken up again. Imports no framework.

RUN/config.json is what it was told, RUN/log.csv a row a step, RUN/checkpoints the last two, RUN/convergence.png the picture
and RUN/record.json the summary. A run goes on with what it was begun with: only its length, its device, its
chunk and the method of its Laplacian may change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import make_folder, write_text
from pinchpoint.systems.common.folders import check_run_folder
from pinchpoint.systems.vmc.checkpoints import Checkpoint, Checkpoints
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.settings import Settings

CONFIG, LOG, RECORD, PICTURE = "config.json", "log.csv", "record.json", "convergence.png"
KIND = "vmc"
FREE = (
    "steps",
    "chunk",
    "method",
)  # of the settings: they change where a run ends and the order of sums, not what it learns
MADE_BY = "pinchpoint vmc train"
FEW, PRETRAIN = 4, 1000  # electrons that need no pretraining, and its steps for more


@dataclass(frozen=True)
class Told:
    """What a run is told: config.json. net_name: the preset that was asked for; pretrain: steps towards Hartree-Fock."""

    system: System
    net: NetConfig
    settings: Settings
    net_name: str = "small"
    pretrain: int = 0
    warm: str = ""  # the checkpoint of another run that this one began with

    def to_dict(self) -> dict[str, Any]:
        # Through JSON, so that what is compared with a file has lists where the file has.
        return {"kind": KIND, **json.loads(json.dumps(dataclasses.asdict(self)))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        if data.get("kind") != KIND:
            raise ValueError(f"it is of a run of kind {data.get('kind')!r}, not of a wave function")
        parts = {"system": System, "net": NetConfig, "settings": Settings}
        made = {name: kind.from_json(json.dumps(data[name])) for name, kind in parts.items()}
        return cls(**made, net_name=data["net_name"], pretrain=data["pretrain"], warm=data["warm"])


@dataclass(frozen=True)
class Run:
    """A folder and what the run in it is told."""

    folder: Path
    told: Told

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints")

    def write(self) -> None:
        """config.json: from here on the folder holds a run."""
        make_folder(self.folder)
        write_text(self.folder / CONFIG, json.dumps(self.told.to_dict(), indent=1) + "\n")

    def last(self) -> Checkpoint | None:
        """The last checkpoint, refused where another run wrote it; None where there is none yet."""
        step = self.checkpoints.last()
        if step is None:
            return None
        found = self.checkpoints.load(step)
        where = self.checkpoints.folder / self.checkpoints.name(step)
        hint = "put back the checkpoints this run wrote, or start again with another -o"
        stored, told = found.told, self.told.to_dict()
        if stored["system"] != told["system"]:
            names = stored["system"].get("name"), self.told.system.name
            what = (
                f"is of {names[0]}, and the run of {names[1]}"
                if len(set(names)) == 2
                else "has its nuclei at other places"
            )
            raise BadInput(f"{where} {what}", hint=hint)
        for part in ("net", "settings"):
            differ = differing(stored[part], told[part], free=FREE)
            if differ:
                raise BadInput(f"{where} is of another {_PARTS[part]}: {'; '.join(differ)}", hint=hint)
        return found


_PARTS = {"net": "network", "settings": "configuration"}


def begin(
    folder: Path,
    what: str | Path | System | None,
    *,
    resume: bool,
    spin: int | None = None,
    charge: int | None = None,
    bond: float | None = None,
    net: str | None = None,
    net_changes: Mapping[str, Any] | None = None,
    choices: Mapping[str, Any] | None = None,
    pretrain: int | None = None,
    warm: str = "",
) -> Run:
    """A new run, not yet written, or the one that is there. None: not asked for, so a preset's or the run's own.

    choices: fields of `Settings`; net_changes: fields of `NetConfig`.
    """
    check_run_folder(folder, resume=resume)
    if pretrain is not None and pretrain < 0:
        raise BadInput(f"pretrain = {pretrain}", hint="give 0 for none, or a number of steps")
    asked = {name: value for name, value in (choices or {}).items() if value is not None}
    if resume:
        run = read_run(folder)
        if what is not None:
            _check_system(run, what, spin=spin, charge=charge, bond=bond)
        _check_net(run, net, net_changes or {})
        _check_choices(run, asked, pretrain)
        return replace(run, told=replace(run.told, settings=_longer(run, asked)))
    if what is None:
        raise BadInput(
            "no molecule to train", hint="name one: H2, LiH or file.xyz; or go on with a run: --resume"
        )
    system = system_of(what, spin=spin, charge=charge or 0, bond=bond)
    name = net or "small"
    made = NetConfig.preset(name, **(net_changes or {}))
    settings = Settings.preset(name, electrons=system.electrons, **asked)
    return Run(
        folder,
        Told(system, made, settings, name, default_pretrain(system) if pretrain is None else pretrain, warm),
    )


def default_pretrain(system: System) -> int:
    """Steps towards Hartree-Fock: none for a few electrons, which find their way by themselves."""
    return 0 if system.electrons <= FEW else PRETRAIN


def read_run(folder: Path) -> Run:
    """The run in a folder."""
    path = folder / CONFIG
    try:
        return Run(folder, Told.from_dict(json.loads(path.read_text(encoding="utf-8"))))
    except OSError as error:
        raise BadInput(
            f"no run in {folder}: {path} cannot be read", hint=f"name a folder that `{MADE_BY}` made"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(
            f"{path} is damaged: {error}", hint=f"name a folder that `{MADE_BY}` made, or restore it"
        ) from error


def differing(
    stored: Mapping[str, Any], asked: Mapping[str, Any], *, free: tuple[str, ...] = ()
) -> list[str]:
    """`key (was 1, is 2)` for everything asked for that is not as it is stored."""
    return [
        f"{name} (was {stored.get(name)}, is {value})"
        for name, value in asked.items()
        if name not in free and stored.get(name) != value
    ]


def _check_system(
    run: Run, what: str | Path | System, *, spin: int | None, charge: int | None, bond: float | None
) -> None:
    stored = run.told.system
    asked = system_of(what, spin=spin, charge=charge or 0, bond=bond)
    hint = "name the molecule of the run, leave it out, or begin a new run with another -o"
    if asked.symbols != stored.symbols:
        raise BadInput(
            f"the run in {run.folder} is of {stored.name}, and {asked.name} is asked for", hint=hint
        )
    if bond is None and asked.nuclei == 2 and not _is_file(what):
        asked = replace(asked, positions=stored.positions)  # a name alone asks for no length in particular
    if asked.positions != stored.positions:
        raise BadInput(
            f"the run in {run.folder} is of {stored.name} with its nuclei at other places", hint=hint
        )
    given = {"spin": spin, "charge": charge}
    differ = differing(
        {"spin": stored.spin, "charge": stored.charge},
        {name: value for name, value in given.items() if value is not None},
    )
    if differ:
        raise BadInput(f"the run in {run.folder} is of another {stored.name}: {'; '.join(differ)}", hint=hint)


def _is_file(what: str | Path | System) -> bool:
    return not isinstance(what, str) or what.lower().endswith(".xyz")


def _check_net(run: Run, net: str | None, changes: Mapping[str, Any]) -> None:
    base = run.told.net if net is None else NetConfig.preset(net)
    asked = dataclasses.asdict(base if net is None and not changes else replace(base, **changes))
    differ = differing(dataclasses.asdict(run.told.net), asked)
    if differ:
        raise BadInput(
            f"the run in {run.folder} has another network: {'; '.join(differ)}",
            hint="leave --net and --set out to go on with its own, or begin a new run with another -o",
        )


def _check_choices(run: Run, asked: Mapping[str, Any], pretrain: int | None) -> None:
    stored = {**dataclasses.asdict(run.told.settings), "pretrain": run.told.pretrain}
    given = asked if pretrain is None else {**asked, "pretrain": pretrain}
    differ = differing(stored, given, free=FREE)
    if differ:
        raise BadInput(
            f"the run in {run.folder} was begun with another configuration: {'; '.join(differ)}",
            hint="leave these options out to go on with its own, or begin a new run with another -o",
        )


def _longer(run: Run, asked: Mapping[str, Any]) -> Settings:
    """The run's settings with what may change. Its rates follow the step alone, so it may be made longer at any time."""
    at = run.checkpoints.last() or 0
    steps = asked.get("steps", run.told.settings.steps)
    if steps < at:
        raise BadInput(
            f"the run in {run.folder} is at step {at:,}, beyond {steps:,}",
            hint=f"give --steps more than {at:,}",
        )
    return replace(run.told.settings, **{name: asked[name] for name in FREE if name in asked})
