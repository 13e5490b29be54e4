"""Trained weights of the package, a run or a file, and the export of a run to a file.

For the format of a file, see `pinchpoint.systems.common.training.weight_files`. Its configuration is that of
the run: the model, the features it reads and the classes it knows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import parse_json
from pinchpoint.core.records import now
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.model import CloudModel
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training.runs import TrainedRun, Which, load_trained
from pinchpoint.systems.common.training.weight_files import load_state, read_weights, write_weights

FORMAT = "pinchpoint cloud weights 1"
PACKAGED = Path(__file__).parents[1] / "model" / "packaged" / "rooms.pt"


def load_weights(path: str | Path = "packaged", *, which: Which = "last", device: str = "cpu") -> TrainedRun:
    """Load the model of a run folder or of an exported file; "packaged" loads the one of the package.

    which: the checkpoint of a run.
    """
    if str(path) == "packaged" and not Path(path).exists():
        path = PACKAGED
    path = Path(path)
    if not path.is_file():
        return load_trained(path, which=which, device=device)

    def parse(config: str, weights: dict[str, Tensor], about: dict[str, Any]) -> TrainedRun:
        settings = Settings.from_dict(parse_json(config))
        model_config = CloudConfig.from_json(json.dumps(settings.model))
        model = CloudModel(model_config)
        load_state(model, weights, str(path))
        return TrainedRun(model.eval(), model_config, settings, about["step"])

    trained = read_weights(
        path,
        parse,
        format=FORMAT,
        what="a cloud model",
        hint="Give the folder of a run, or a file exported from one.",
    )
    return replace(trained, model=trained.model.to(device))


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
    # The folder of the data is of this machine; its fingerprint says which data it was.
    settings = replace(trained.settings, data_path="", data_given="")
    return write_weights(
        path,
        trained.model.state_dict(),
        format=FORMAT,
        config=json.dumps(settings.to_dict()),
        about={"step": trained.step, "created": now(), **(about or {})},
        half=half,
    )
