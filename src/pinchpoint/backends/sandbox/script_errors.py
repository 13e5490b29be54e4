"""From how a script ended to the error a user reads: what happened, at which of their lines, and the hint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pinchpoint.backends.sandbox.files.merged_view import Refused
from pinchpoint.backends.sandbox.processes import RefusedProcess
from pinchpoint.backends.sandbox.run_script import ScriptEnd
from pinchpoint.core.errors import Missing, PinchpointError, TargetFailed
from pinchpoint.core.targets import explain_failure, user_line

# Packages whose import name is not what one installs.
_PUBLISHED_AS = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
    "dotenv": "python-dotenv",
    "git": "gitpython",
    "torch_geometric": "torch-geometric",
    "hydra": "hydra-core",
    "ray": "ray",
    "flash_attn": "flash-attn",
    "pl_bolts": "lightning-bolts",
    "Bio": "biopython",
    "rdkit": "rdkit",
    "ase": "ase",
}
_USAGE = 2  # what argparse, click and typer exit with
_ARGUMENTS = "pass the script's arguments after --"


def fault(end: ScriptEnd, *, script: str, steps: int, refused: Sequence[str] = ()) -> PinchpointError | None:
    """The error to raise for a script that ended so, after `steps` steps; None if it took its steps and all is well.

    `refused` is what it wanted to start (`Processes.refused`): a likely reason for what it missed.
    """
    name = Path(script).name
    if end.kind == "stopped":
        return None
    if end.kind == "raised" and end.error is not None:
        return _raised(Path(script), end.error, refused)
    if steps:
        return None
    if end.kind == "finished":
        return TargetFailed(
            f"{name} ran to its end without one training step{_said(end)}",
            hint=f"{_ARGUMENTS} so that it trains, e.g. predict {name} -- --epochs 1; a step is optimizer.step()",
        )
    if end.code == _USAGE and end.complaints:
        return TargetFailed(f"{name} did not accept its arguments: {end.complaints[-1]}", hint=_ARGUMENTS)
    at = user_line(end.error) if end.error is not None else ""
    where = f" at {at}" if at else ""
    return TargetFailed(
        f"{name} exited with code {end.code}{where} before its first step{_said(end)}", hint=_ARGUMENTS
    )


def _raised(script: Path, error: BaseException, refused: Sequence[str]) -> PinchpointError:
    for link in _chain(error):
        if isinstance(link, PinchpointError):
            return link  # ours already says what and how, whatever a library wrapped around it
    name, at = script.name, user_line(error)
    where = f" at {at}" if at else ""
    also = f" (not started: {'; '.join(refused)})" if refused else ""
    if isinstance(error, RefusedProcess):
        return TargetFailed(
            f"{name} starts another process{where}, which predict does not do: {error.filename}",
            hint="run that step beforehand, or let the script go on without it (predict needs no worker processes)",
        )
    if isinstance(error, Refused):
        return TargetFailed(
            f"{name} is refused {error.filename}{where}: {error.strerror}",
            hint="switch that output off for the prediction, or write it with open()",
        )
    if isinstance(error, ImportError):
        return _import_failed(script, error, where)
    if isinstance(error, FileNotFoundError):
        return TargetFailed(
            f"{name} needs the missing file {error.filename or error}{where}{also}",
            hint=f"put the file there, or {_ARGUMENTS} with the right path; relative paths start at the current folder",
        )
    plain = explain_failure(name, error, "running")
    return TargetFailed(plain.what + also, hint=plain.hint)


def _import_failed(script: Path, error: ImportError, where: str) -> PinchpointError:
    name, package = script.name, (error.name or "").partition(".")[0]
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and package and package not in sys.modules:
        for folder in (Path.cwd(), *script.resolve().parents[:3]):
            if (folder / package).is_dir() or (folder / f"{package}.py").is_file():
                hint = f"run predict with PYTHONPATH={folder}, as the script itself needs it"
                return Missing(f"{name} cannot find its module {error.name}{where}", hint=hint)
        install = f"pip install {_PUBLISHED_AS.get(package, package)}"
        return Missing(
            f"{name} needs the package {package}{where}", hint=f"{install} (CPU builds are enough to predict)"
        )
    if package and _is_installed(error.path):
        hint = f"install the version of {package} the script was written for"
        return Missing(f"{name} needs another version of {package}{where}: {text}", hint=hint)
    if text.startswith("attempted relative import"):
        hint = "predict a script that imports the package, not a module inside it"
        return TargetFailed(f"{name} is part of a package{where}: {text}", hint=hint)
    if not package:
        return Missing(
            f"{name} cannot import what it needs{where}: {text}", hint="install what the message names"
        )
    return explain_failure(name, error, "running")


def _is_installed(path: str | None) -> bool:
    return path is not None and ("site-packages" in path or "dist-packages" in path)


def _chain(error: BaseException) -> list[BaseException]:
    """An error and those it was raised from or while handling."""
    found: list[BaseException] = []
    link: Any = error
    while link is not None and link not in found:
        found.append(link)
        link = link.__cause__ or link.__context__
    return found


def _said(end: ScriptEnd) -> str:
    last = (end.complaints or end.output)[-1:]
    return f"; it last said: {last[0]}" if last else ""
