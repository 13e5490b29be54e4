"""What training a density model and measuring it on a data set leave behind: records that survive JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_bytes, show_seconds


@dataclass(frozen=True)
class Training(Record):
    """A training run: record.json of its folder."""

    kind: ClassVar[str] = "density-training"
    target: str  # the folder of the run
    data: str  # the folder of the data set
    settings: dict[str, Any]
    step: int
    loss: float | None  # mean of the last tenth of the steps: error per electron
    validation: float | None  # mean NMAE of the geometries held back, at the best checkpoint
    best_step: int | None
    parameters: int
    structures: int  # trained on
    probes: int  # stored of them
    device: str
    chunk: int | None  # probes at one time
    peak_bytes: int  # peak allocated on CUDA, peak resident on CPU
    seconds: float
    complete: bool
    predicted_bytes: int | None = None  # by --budget
    budget_bytes: int | None = None
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        rows = [
            ("run", self.target),
            ("steps", f"{self.step:,} of {self.settings['steps']:,}"),
            ("structures", f"{self.structures:,} with {self.probes:,} probes"),
            ("parameters", f"{self.parameters:,}"),
        ]
        if self.loss is not None:
            rows.append(("loss", f"{self.loss:.4f} per electron (mean of the last tenth)"))
        if self.validation is not None:
            rows.append(("held back", f"{self.validation:.2%} NMAE at step {self.best_step:,}, the best"))
        what = "allocated" if self.device == "cuda" else "resident"
        rows.append(("peak", f"{show_bytes(self.peak_bytes)} {what}"))
        if self.budget_bytes is not None:
            rows.append(("budget", f"{show_bytes(self.budget_bytes)}; {show_bytes(self.predicted_bytes)} predicted"))
        if self.chunk is not None:
            rows.append(("chunk", f"{self.chunk:,} probes at one time"))
        rows.append(("time", f"{show_seconds(self.seconds)} on {self.device}"))
        return rows


@dataclass(frozen=True)
class Scores(Record):
    """Errors of a model on the samples of one split."""

    kind: ClassVar[str] = "density-scores"
    target: str  # the weights
    data: str
    split: str
    samples: tuple[dict[str, Any], ...]  # {"name", "molecule", "probes", "nmae", "superposition", "electrons", "integral"}
    nmae: float  # mean over the samples
    superposition: float | None  # the same of superposed spherical atoms, of the samples whose species have such
    seconds: float
    device: str
    spin_nmae: float | None = None  # of the samples and models that have a spin density
    definition: str = "NMAE = sum w |predicted - true| / sum w |true|; w: the volume a probe stands for"
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def of_molecules(self) -> dict[str, tuple[float, float | None]]:
        """Mean NMAE of each molecule, and that of superposed atoms."""
        found: dict[str, list[dict[str, Any]]] = {}
        for sample in self.samples:
            found.setdefault(sample["molecule"], []).append(sample)
        return {
            name: (
                sum(one["nmae"] for one in own) / len(own),
                None if own[0]["superposition"] is None else sum(one["superposition"] for one in own) / len(own),
            )
            for name, own in found.items()
        }

    def summary(self) -> list[tuple[str, str]]:
        worst = max(self.samples, key=lambda sample: sample["nmae"])
        off = max(abs(sample["integral"] / sample["electrons"] - 1) for sample in self.samples)
        rows = [
            ("weights", self.target),
            ("samples", f"{len(self.samples):,} of {self.data}, {self.split}"),
            ("NMAE", f"{self.nmae:.3%} mean; {worst['nmae']:.3%} at worst ({worst['name']})"),
        ]
        if self.spin_nmae is not None:
            rows.append(("NMAE of the spin", f"{self.spin_nmae:.3%} mean"))
        if self.superposition is not None:
            rows.append(("superposed atoms", f"{self.superposition:.3%} mean"))
        rows.append(("electrons", f"off by at most {off:.3%}"))
        for name, (own, other) in self.of_molecules().items():
            rows.append((name, f"{own:.3%}" + ("" if other is None else f"   superposed {other:.3%}")))
        return [*rows, ("time", f"{show_seconds(self.seconds)} on {self.device}")]
