"""The folder of a run: refused, begun, resumed. Imports no framework.

RUN/config.json holds the configuration, RUN/log.csv one row per step, RUN/checkpoints the last two,
RUN/convergence.png the plot and RUN/record.json the summary. A run is resumed with the configuration it was
started with: only its length, its device, its chunk and the method of its Laplacian may change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.folders import check_run_folder
from pinchpoint.systems.common.settings import changeable_options, changed_values, check_options
from pinchpoint.systems.common.training.checkpoints import ARRAYS, Codec
from pinchpoint.systems.common.training.logs import RowLog
from pinchpoint.systems.common.training.runs import RESTORE, RunFolder, read_settings
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.settings import RunOptions, Settings

PICTURE = "convergence.png"
KIND = "vmc"
# They change the length of a run or the order of sums, not what it learns.
_CHANGEABLE = changeable_options(Settings)
FEW, PRETRAIN = 4, 1000  # electrons that need no pretraining, and its steps for more
_NAMES = {"net": "network", "settings": "configuration"}


@dataclass(frozen=True)
class RunConfig:
    """What config.json holds. net_name: the preset of the network; pretrain: steps towards Hartree-Fock."""

    system: System
    net: NetConfig
    settings: Settings
    net_name: str = "small"
    pretrain: int = 0
    warm: str = ""  # the run whose network and walkers this one started from

    def to_dict(self) -> dict[str, Any]:
        # Through JSON, so that it has lists where a file has them and can be compared with one.
        return {"kind": KIND, **json.loads(json.dumps(dataclasses.asdict(self)))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        if data.get("kind") != KIND:
            raise ValueError(f"it belongs to a run of kind {data.get('kind')!r}, not to a wave function")
        parts = {"system": System, "net": NetConfig, "settings": Settings}
        values = {name: kind.from_json(json.dumps(data[name])) for name, kind in parts.items()}
        return cls(**values, net_name=data["net_name"], pretrain=data["pretrain"], warm=data["warm"])


@dataclass(frozen=True)
class Row:
    """One step of log.csv.

    energy_ha, variance: of the local energies of all walkers; seconds: of training so far.
    """

    step: int
    energy_ha: float
    variance: float  # hartree^2
    acceptance: float  # accepted part of the moves
    width: float  # of the proposals, bohr
    norm: float  # length of the change of all parameters as it was made: SPRING's is capped
    clipped: float  # clipped part of the local energies
    seconds: float


class Log(RowLog[Row]):
    columns = tuple(f.name for f in fields(Row))

    @classmethod
    def row_of(cls, line: Mapping[str, str]) -> Row:
        return Row(int(line["step"]), *(float(line[name]) for name in cls.columns[1:]))

    @classmethod
    def cells_of(cls, row: Row) -> list[Any]:
        step, energy, *others, seconds = astuple(row)
        return [step, f"{energy:.10g}", *(f"{value:.6g}" for value in others), f"{seconds:.4f}"]


@dataclass(frozen=True)
class Run(RunFolder):
    """A folder and the configuration of the run in it."""

    codec: ClassVar[Codec] = ARRAYS

    config: RunConfig

    @property
    def steps(self) -> int:
        return self.config.settings.steps

    def to_dict(self) -> dict[str, Any]:
        return self.config.to_dict()

    def resumed_state(self) -> dict[str, Any] | None:
        """The state of the last checkpoint, refused where another run wrote it; None before the first."""
        entry = self.checkpoints.last()
        if entry is None:
            return None
        state = self.checkpoints.load(entry)
        where = self.checkpoints.folder / entry.file
        # Fields that an earlier version did not have get their defaults.
        stored, config = RunConfig.from_dict(state["settings"]).to_dict(), self.to_dict()
        if stored["system"] != config["system"]:
            names = stored["system"].get("name"), self.config.system.name
            raise BadInput(
                f"{where} belongs to {names[0]}, but the run is of {names[1]}."
                if len(set(names)) == 2
                else f"{where} has its nuclei at other positions than the run.",
                hint=RESTORE,
            )
        for part, name in _NAMES.items():
            changes = changed_values(stored[part], config[part], ignore=_CHANGEABLE)
            if changes:
                raise BadInput(f"{where} belongs to another {name}: {'; '.join(changes)}.", hint=RESTORE)
        return state


def begin(
    folder: Path,
    molecule: str | Path | System | None,
    *,
    resume: bool,
    spin: int | None = None,
    charge: int | None = None,
    bond: float | None = None,
    pseudopotential: str | None = None,
    net: str | None = None,
    net_changes: Mapping[str, Any] | None = None,
    choices: Mapping[str, Any] | None = None,
    pretrain: int | None = None,
    warm: str = "",
) -> Run:
    """A new run, not yet written, or with `resume` the one in the folder.

    choices: fields of `Settings`; net_changes: fields of `NetConfig`. None means the preset's value, or the
    run's own.
    """
    check_run_folder(folder, resume=resume)
    check_options(RunOptions(pretrain=pretrain, pseudopotential=pseudopotential))
    changes = {name: value for name, value in (choices or {}).items() if value is not None}
    if resume:
        run = read_run(folder)
        if molecule is not None:
            _check_system(run, molecule, spin=spin, charge=charge, bond=bond, pseudopotential=pseudopotential)
        _check_net(run, net, net_changes or {})
        _check_settings(run, changes, pretrain)
        return replace(run, config=replace(run.config, settings=_resumed_settings(run, changes)))
    if molecule is None:
        raise BadInput(
            "There is no molecule to train.",
            hint="Name one, such as H2, LiH or file.xyz, or resume a run with --resume.",
        )
    system = system_of(molecule, spin=spin, charge=charge or 0, bond=bond, pseudopotential=pseudopotential)
    name = net or "small"
    network = NetConfig.preset(name, **(net_changes or {}))
    if network.states > 1 and pretrain:
        raise BadInput(
            f"Pretraining fits a single state, but {network.states} are trained.",
            hint="Leave out --set pretrain, or train one state.",
        )
    if network.states > 1 and changes.get("spin_penalty"):
        raise BadInput(
            f"A spin penalty selects a single state, but {network.states} are trained.",
            hint="Leave out --set spin_penalty, or train one state.",
        )
    config = RunConfig(
        system,
        network,
        Settings.preset(name, electrons=system.electrons, **changes),
        name,
        (default_pretrain(system) if network.states == 1 else 0) if pretrain is None else pretrain,
        warm,
    )
    return Run(folder, config)


def default_pretrain(system: System) -> int:
    """Steps towards Hartree-Fock: none for a few electrons, which converge without."""
    return 0 if system.electrons <= FEW else PRETRAIN


def read_run(folder: Path) -> Run:
    """The run in a folder."""
    return Run(folder, read_settings(folder, RunConfig, made_by="vmc train"))


def _check_system(
    run: Run,
    molecule: str | Path | System,
    *,
    spin: int | None,
    charge: int | None,
    bond: float | None,
    pseudopotential: str | None,
) -> None:
    stored = run.config.system
    # A name alone asks for no pseudopotential.
    potential = stored.pseudopotential if pseudopotential is None else pseudopotential
    system = system_of(molecule, spin=spin, charge=charge or 0, bond=bond, pseudopotential=potential)
    hint = "Name the molecule of the run, leave it out, or start a new run with another -o."
    if system.symbols != stored.symbols:
        raise BadInput(f"The run in {run.folder} is of {stored.name}, not of {system.name}.", hint=hint)
    if bond is None and system.nuclei == 2 and not _is_file(molecule):
        system = replace(system, positions=stored.positions)  # a name alone asks for no bond length
    if system.positions != stored.positions:
        raise BadInput(
            f"The run in {run.folder} is of {stored.name} with its nuclei at other positions.", hint=hint
        )
    electrons = {"spin": spin, "charge": charge, "pseudopotential": pseudopotential}
    changes = changed_values(
        {"spin": stored.spin, "charge": stored.charge, "pseudopotential": stored.pseudopotential or "none"},
        {name: value for name, value in electrons.items() if value is not None},
    )
    if changes:
        raise BadInput(
            f"The run in {run.folder} is of another state of {stored.name}: {'; '.join(changes)}.", hint=hint
        )


def _is_file(molecule: str | Path | System) -> bool:
    return not isinstance(molecule, str) or molecule.lower().endswith(".xyz")


def _check_net(run: Run, net: str | None, changes: Mapping[str, Any]) -> None:
    base = run.config.net if net is None else NetConfig.preset(net, states=run.config.net.states)
    config = dataclasses.asdict(base if net is None and not changes else replace(base, **changes))
    different = changed_values(dataclasses.asdict(run.config.net), config)
    if different:
        raise BadInput(
            f"The run in {run.folder} has another network: {'; '.join(different)}.",
            hint="Leave out --net and --set to resume it, or start a new run with another -o.",
        )


def _check_settings(run: Run, choices: Mapping[str, Any], pretrain: int | None) -> None:
    stored = {**dataclasses.asdict(run.config.settings), "pretrain": run.config.pretrain}
    values = choices if pretrain is None else {**choices, "pretrain": pretrain}
    different = changed_values(stored, values, ignore=_CHANGEABLE)
    if different:
        raise BadInput(
            f"The run in {run.folder} was started with other settings: {'; '.join(different)}.",
            hint="Leave these options out to resume it, or start a new run with another -o.",
        )


def _resumed_settings(run: Run, choices: Mapping[str, Any]) -> Settings:
    """The run's settings with those that may change. Its rates follow the step alone, so its length may."""
    at = run.checkpoints.last_step()
    steps = choices.get("steps", run.steps)
    if steps < at:
        raise BadInput(
            f"The run in {run.folder} is at step {at:,}, beyond {steps:,}.",
            hint=f"Give --steps more than {at:,}.",
        )
    return replace(run.config.settings, **{name: choices[name] for name in _CHANGEABLE if name in choices})
