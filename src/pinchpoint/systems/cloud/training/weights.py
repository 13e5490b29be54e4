"""Trained weights of the package, a run or a file, and the export of a run to a file.

For the format of a file, see `pinchpoint.systems.common.training.weight_files`. Its configuration is that of
the run: the model, the features it reads and the classes it knows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.model import CloudModel
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training.runs import TrainedRun, Which, load_trained
from pinchpoint.systems.common.training.weight_files import export_trained, load_trained_weights

FORMAT = "pinchpoint cloud weights 1"
PACKAGED = Path(__file__).parents[1] / "model" / "packaged" / "rooms.pt"


def load_weights(path: str | Path = "packaged", *, which: Which = "last", device: str = "cpu") -> TrainedRun:
    """Load the model of a run folder or of an exported file; "packaged" loads the one of the package.

    which: the checkpoint of a run.
    """

    def build(config: dict[str, Any]) -> tuple[CloudModel, CloudConfig, Settings]:
        settings = Settings.from_dict(config)
        model_config = CloudConfig.from_json(json.dumps(settings.model))
        return CloudModel(model_config), model_config, settings

    return load_trained_weights(
        path,
        build,
        packaged=PACKAGED,
        load_run=lambda folder: load_trained(folder, which=which, device=device),
        format=FORMAT,
        what="a cloud model",
        hint="Give the folder of a run, or a file exported from one.",
        device=device,
    )


def export(
    run: str | Path,
    path: str | Path,
    *,
    which: Which = "last",
    half: bool = False,
    about: dict[str, Any] | None = None,
) -> Path:
    """Write the weights of a run (averaged if it has them) to one file, with a JSON beside it.

    half: matrices in float16. about: added to their origin.
    """
    if not Path(run).is_dir():
        raise BadInput(f"There is no run in {run}.", hint="Name a folder that `cloud train` wrote.")
    trained = load_trained(run, which=which)
    return export_trained(trained, path, format=FORMAT, half=half, about=about)
