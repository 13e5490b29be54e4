"""Trained generators of a run, of a file or of the package, and the export of a run to a file.

For the format of a file, see `pinchpoint.systems.common.training.weight_files`. Its configuration is that of
the run: the field, the camera and the super-resolution. The discriminators are not part of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.common.training.weight_files import export_trained, load_trained_weights
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.objective import Generator
from pinchpoint.systems.radiance.settings import Settings
from pinchpoint.systems.radiance.training.runs import TrainedRun, Which, load_trained, settings_for

FORMAT = "pinchpoint radiance weights 1"
PACKAGED = Path(__file__).parents[1] / "model" / "packaged" / "cars.pt"


@dataclass(frozen=True)
class Export(Record):
    """A file of weights that `radiance export` wrote."""

    kind: ClassVar[str] = "radiance-export"
    target: str
    step: int
    parameters: int
    half: bool
    bytes: int
    files: tuple[str, ...]
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        precision = "fp16" if self.half else "fp32"
        return [
            ("run", f"{self.target}, step {self.step:,}"),
            ("weights", f"{self.parameters:,} in {precision}, {show_bytes(self.bytes)}"),
            ("written", ", ".join(self.files)),
        ]


def load_weights(path: str | Path, *, which: Which = "last", device: str = "cpu") -> TrainedRun:
    """Load the generator of a run folder or of an exported file; "packaged" loads that of the package.

    which: the checkpoint of a run.
    """

    def build(config: dict[str, Any]) -> tuple[Generator, FieldConfig, Settings]:
        settings = settings_for(Settings.from_dict(config), device)
        model_config = FieldConfig.from_json(json.dumps(settings.model))
        return Generator(model_config, settings).requires_grad_(False), model_config, settings

    return load_trained_weights(
        path,
        build,
        packaged=PACKAGED,
        load_run=lambda folder: load_trained(folder, which=which, device=device),
        format=FORMAT,
        what="a radiance field",
        hint="Give the folder of a run, or a file that `radiance export` wrote.",
        device=device,
    )


def export(
    run: str | Path,
    output: str | Path,
    *,
    which: Which = "last",
    half: bool = True,
    about: dict[str, Any] | None = None,
) -> Export:
    """Write the generator of a run (averaged weights if it has them) to one file, with a JSON beside it.

    half: matrices in float16. about: added to their origin.
    """
    if Path(output).suffix.lower() != ".pt":
        raise BadInput(f"Weights cannot be written to {output}.", hint="Name a file that ends in .pt.")
    trained = load_trained(Path(run), which=which)
    path = export_trained(trained, output, format=FORMAT, half=half, about=about)
    return Export(
        target=str(run),
        step=trained.step,
        parameters=sum(value.numel() for value in trained.model.state_dict().values()),
        half=half,
        bytes=path.stat().st_size,
        files=(str(path), str(path.with_suffix(".json"))),
    )
