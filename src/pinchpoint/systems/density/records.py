"""What training a density model and measuring it on a data set leave behind: records that survive JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_seconds
from pinchpoint.systems.common.records import TrainingRecord


@dataclass(frozen=True, kw_only=True)
class Training(TrainingRecord):
    """loss: error per electron; validation: mean NMAE of the geometries held back; chunk: probes."""

    kind: ClassVar[str] = "density-training"
    structures: int  # trained on
    probes: int  # stored of them
    notes: tuple[str, ...] = ()  # what the user of the run must know

    def summary(self) -> list[tuple[str, str]]:
        trained_on = "structures", f"{self.structures:,} with {self.probes:,} probes"
        return self.rows(
            trained_on, loss="per electron (mean of the last tenth)", error="NMAE", points="probes"
        )


@dataclass(frozen=True)
class Scores(Record):
    """Errors of a model on the samples of one split."""

    kind: ClassVar[str] = "density-scores"
    target: str  # the weights
    data: str
    split: str
    samples: tuple[
        dict[str, Any], ...
    ]  # {"name", "molecule", "probes", "nmae", "superposition", "electrons", "integral"}
    nmae: float  # mean over the samples
    superposition: (
        float | None
    )  # the same of superposed spherical atoms, of the samples whose species have such
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
                None
                if own[0]["superposition"] is None
                else sum(one["superposition"] for one in own) / len(own),
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
