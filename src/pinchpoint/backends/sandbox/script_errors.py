"""`script_error`: the error message for a script that ended before its steps, with its line and a hint."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from pinchpoint.backends.sandbox.files.merged_view import RefusedWrite
from pinchpoint.backends.sandbox.kernel.c_functions import RefusedCall
from pinchpoint.backends.sandbox.network import RefusedConnection
from pinchpoint.backends.sandbox.processes import RefusedProcess
from pinchpoint.backends.sandbox.run_script import ScriptEnd
from pinchpoint.core.errors import Missing, PinchpointError, TargetFailed
from pinchpoint.core.failures import causes, failure
from pinchpoint.core.targets import explain_failure, user_line

# Packages whose name on PyPI differs from their import name.
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
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHERS = ("torchrun ", "accelerate launch ", "accelerate-launch ")
_PROCESS = (
    "If it trains, start it with torchrun or torch.multiprocessing.spawn, of which one process is predicted; "
    "otherwise call its function directly for the prediction."
)
_TOO_FEW_GPUS = re.compile(r"You requested gpu: \[([\d, ]+)\]\s+But your machine only has")  # of Lightning
_USAGE = 2  # the exit code of argparse, click and typer for wrong arguments
_ARGUMENTS = "Pass the script's arguments after --"


def script_error(
    end: ScriptEnd, *, script: str, steps: int, not_started: Sequence[str] = ()
) -> PinchpointError | None:
    """The error to raise for a script that ended after `steps` steps; None if it took its steps.

    not_started: the commands that were refused (`Processes.refused_commands`), a likely cause of the error
    """
    name = Path(script).name
    if end.kind == "stopped":
        return None
    if end.kind == "raised" and end.error is not None:
        return _raised_error(Path(script), end.error, not_started)
    if steps:
        return None
    if end.kind == "finished":
        return TargetFailed(
            f"{name!r} ended without a training step{_last_line(end)}.",
            hint=f"{_ARGUMENTS} so that it trains, such as predict {name} -- --epochs 1. "
            "A step is a call of optimizer.step().",
        )
    if end.code == _USAGE and end.complaints:
        return TargetFailed(
            f"{name!r} did not accept its arguments: {end.complaints[-1]}",
            hint=f"Give arguments that the script knows after --, such as predict {name} -- --epochs 1.",
        )
    at = user_line(end.error) if end.error is not None else ""
    where = f" at {at}" if at else ""
    return TargetFailed(
        f"{name!r} exited with code {end.code}{where} before its first step{_last_line(end)}.",
        hint=_launch_hint(not_started) or f"{_ARGUMENTS}.",
    )


def lightning_job(error: BaseException | None) -> tuple[int, int] | None:
    """Machines, and GPUs of each, of a Trainer of Lightning that found too few GPUs."""
    gpus = None if error is None else _TOO_FEW_GPUS.search(str(error))
    if gpus is None or error is None:
        return None
    frames = (frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__))
    nodes = next((names["num_nodes"] for names in frames if isinstance(names.get("num_nodes"), int)), 1)
    return nodes, gpus.group(1).count(",") + 1


def _launch_hint(not_started: Sequence[str]) -> str | None:
    """The hint for a script that starts a launcher of processes itself."""
    for command in not_started:
        words = command.partition(" -m torch.distributed.run ")
        launch = f"torchrun {words[2]}" if words[1] else command
        if launch.startswith(_LAUNCHERS):
            return f"Predict the command that it starts: pinchpoint predict -- {launch}"
    return None


def _raised_error(script: Path, error: BaseException, not_started: Sequence[str]) -> PinchpointError:
    for link in causes(error):
        if isinstance(link, PinchpointError):
            return link  # our own error has its message and hint, even if a library wrapped it
    name, at = script.name, user_line(error)
    where = f" at {at}" if at else ""
    for link in causes(error):
        if isinstance(link, RefusedConnection):
            return TargetFailed(
                f"{name!r} sends data{where}, which a prediction does not allow by default: {link.what}.",
                hint="Add --allow-network, or pass arguments with which the script does not need it.",
            )
    also = f" (not started: {'; '.join(not_started)})" if not_started else ""
    if isinstance(error, RefusedProcess):
        return TargetFailed(
            f"{name!r} starts another process{where}, which pinchpoint does not support yet: "
            f"{error.filename}.",
            hint=_launch_hint([str(error.filename)])
            or (_PROCESS if str(error.filename).startswith("multiprocessing: ") else None)
            or "Run that command beforehand, or pass arguments with which the script does not need it.",
        )
    if isinstance(error, RefusedCall):
        return TargetFailed(
            f"{name!r} calls {error.filename} of the C library{where}, which a prediction does not allow.",
            hint="Use the function of Python's os module, or pass arguments with which the script does not "
            "need it.",
        )
    if gpus := _TOO_FEW_GPUS.search(str(error)):
        count = gpus.group(1).count(",") + 1
        return TargetFailed(
            f"{name!r} asks for {count} GPUs{where}.",
            hint=f"Add --world-size {count}, or {count} times the number of machines: "
            "one of the processes that Lightning starts is predicted.",
        )
    if isinstance(error, RefusedWrite):
        return TargetFailed(
            f"{name!r} writes {error.filename}{where}, which pinchpoint does not support yet: "
            f"{error.strerror}.",
            hint="Switch that output off for the prediction.",
        )
    if isinstance(error, ImportError):
        return _import_error(script, error, where)
    if isinstance(error, KeyError) and error.args[:1] and error.args[0] in _TORCHRUN:
        return TargetFailed(
            f"{name!r} reads the variable {error.args[0]}{where}, which only torchrun sets.",
            hint="Add --world-size N to predict it as rank 0 of N processes.",
        )
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return TargetFailed(
            f"{name!r} opens {_text(error.filename)}{where}, but this file does not exist{also}.",
            hint=_missing_file_hint(script, Path(_text(error.filename))),
        )
    fault = failure(name, error, "running")
    return type(fault)(fault.what + also, hint=fault.hint)


def _missing_file_hint(script: Path, file: Path) -> str:
    if file.is_absolute():
        return "Create the file, or pass the right path to the script after --."
    folder = script.resolve().parent
    if (folder / file).exists():
        return f"Run predict in {folder}, where {file} exists: the script looks for it in the current folder."
    return (
        f"Create {Path.cwd() / file}, pass the right path to the script after --, "
        "or run predict in the folder that the path starts from."
    )


def _text(filename: object) -> str:
    return os.fsdecode(filename) if isinstance(filename, (str, bytes, os.PathLike)) else str(filename)


def _import_error(script: Path, error: ImportError, where: str) -> PinchpointError:
    name, package = script.name, (error.name or "").partition(".")[0]
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and package and package not in sys.modules:
        for folder in (Path.cwd(), *script.resolve().parents[:3]):
            if (folder / package).is_dir() or (folder / f"{package}.py").is_file():
                hint = f"Run predict with PYTHONPATH={folder}, which the script itself needs too."
                return Missing(f"{name!r} cannot find its module {error.name}{where}.", hint=hint)
        install = f"pip install {_PUBLISHED_AS.get(package, package)}"
        return Missing(
            f"{name!r} imports {package}{where}, but this package is not installed.",
            hint=f"Run {install}; a CPU build is enough to predict.",
        )
    if package and _is_installed(error.path):
        hint = f"Install the version of {package} for which the script was written."
        return Missing(f"{name!r} needs another version of {package}{where}: {text}.", hint=hint)
    if text.startswith("attempted relative import"):
        module = _module_name(script)
        hint = f"From the folder that holds the package, run pinchpoint predict -m {module}."
        return TargetFailed(f"{name!r} is part of a package{where}: {text}.", hint=hint)
    if not package:
        return Missing(
            f"{name!r} cannot import what it needs{where}: {text}.",
            hint="Install what the message names.",
        )
    return explain_failure(name, error, "running")


def _module_name(script: Path) -> str:
    """The name under which a file inside a package is imported."""
    file = script.resolve()
    names = [file.stem]
    for folder in file.parents:
        if not (folder / "__init__.py").is_file():
            break
        names.insert(0, folder.name)
    return ".".join(names if len(names) > 1 else [file.parent.name, file.stem])


def _is_installed(path: str | None) -> bool:
    return path is not None and ("site-packages" in path or "dist-packages" in path)


def _last_line(end: ScriptEnd) -> str:
    last = (end.complaints or end.output)[-1:]
    return f"; its last output is: {last[0]}" if last else ""
