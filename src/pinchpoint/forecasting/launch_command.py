"""`read_launch`: what the command of a launcher starts, such as `torchrun --nproc-per-node 8 train.py`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinchpoint.core import errors
from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.core.ranks import make_rank, parse_world_sizes
from pinchpoint.core.units import check_seconds

# What starts with these words is the command of a launcher.
_TORCHRUN = (("torchrun",), ("python", "-m", "torch.distributed.run"))
_ACCELERATE = (
    ("accelerate", "launch"),
    ("accelerate-launch",),
    ("python", "-m", "accelerate.commands.launch"),
)
_WORDS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "python", "python3")
_READER = "pinchpoint.backends.torch.ranks.launchers"


@dataclass(frozen=True)
class Launch:
    """A script with its arguments, the size of its job, and the variables that the launcher sets.

    world_size is None for one process without a process group. notes: what the command leaves open.
    """

    target: str
    args: tuple[str, ...]
    world_size: int | None
    local_world_size: int | None
    environment: dict[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()


def is_launch(target: object) -> bool:
    """Whether a target is the first word of a command, or a whole command."""
    return isinstance(target, str) and target.partition(" ")[0] in _WORDS


def read_launch(
    target: str,
    args: Sequence[str],
    *,
    world_size: int | None = None,
    local_world_size: int | None = None,
    timeout_s: float = 300.0,
) -> Launch:
    """Read a command with the launcher's own code. world_size: what the user gave, which must agree."""
    check_seconds("timeout", timeout_s)
    words = [*shlex.split(target), *args]
    if words[0] == "python3":
        words[0] = "python"
    for launcher, starts in (("torchrun", _TORCHRUN), ("accelerate", _ACCELERATE)):
        for start in starts:
            if tuple(words[: len(start)]) == start:
                started = _ask([launcher, *words[len(start) :]], timeout_s)
                return _agree(_name(launcher), started, world_size, local_world_size)
    if words[0] == "python":
        return _of_python(words[1:], world_size, local_world_size)
    if words[0] == "deepspeed":
        raise BadInput(
            "The launcher of DeepSpeed is not supported yet.",
            hint="Give the same job to torchrun: predict -- torchrun --nproc-per-node 8 train.py ...",
        )
    raise BadInput(
        f"{shlex.join(words[:2])} starts no script.",
        hint="Give the command that starts it, such as accelerate launch --config_file fsdp.yaml train.py.",
    )


def read_planned_launch(
    target: Any,
    args: Sequence[str],
    world_size: int | str | Sequence[int] | None,
    local_world_size: int | None,
    timeout_s: float,
) -> Launch | None:
    """The command of a launcher whose script is planned; None if the target is none.

    world_size: as in `plan`; a command starts one number of processes.
    """
    if not is_launch(target):
        return None
    sizes = () if world_size is None else parse_world_sizes(world_size)
    if len(sizes) > 1:
        raise BadInput(
            "The command of a launcher starts one number of processes, but --world-size has several.",
            hint="Give the script itself: plan train.py --world-size 8,16,32 ...",
        )
    size = sizes[0] if sizes else None
    return read_launch(target, args, world_size=size, local_world_size=local_world_size, timeout_s=timeout_s)


def _name(launcher: str) -> str:
    return "accelerate launch" if launcher == "accelerate" else launcher


def _of_python(words: list[str], world_size: int | None, local_world_size: int | None) -> Launch:
    """`python [-m] train.py arguments`, which starts one process."""
    if words[:1] == ["-m"] and len(words) > 1:
        return Launch(f"-m {words[1]}", tuple(words[2:]), world_size, local_world_size)
    if not words or words[0].startswith("-"):
        raise BadInput(
            f"{shlex.join(['python', *words[:1]])} cannot be predicted.",
            hint="Give python and a script, without options of Python.",
        )
    return Launch(words[0], tuple(words[1:]), world_size, local_world_size)


def _ask(command: list[str], timeout_s: float) -> dict[str, object]:
    """Let a process of its own read the command, because launchers import torch."""
    try:
        answer = subprocess.run(
            [sys.executable, "-m", _READER],
            input=json.dumps(command),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise errors.TimedOut(
            f"Reading the command of {command[0]} took longer than {timeout_s:g} s.", hint="Raise --timeout."
        ) from error
    lines = answer.stdout.strip().splitlines()
    if not lines:
        last = answer.stderr.strip().splitlines()[-1:] or ["no output"]
        raise TargetFailed(
            f"The process that reads the command of {command[0]} died: {last[0]}",
            hint="Run again with --debug.",
        )
    data = json.loads(lines[-1])
    if "error" in data:
        raise errors.from_dict(data)
    return data


def _agree(
    launcher: str, started: dict[str, object], world_size: int | None, local_world_size: int | None
) -> Launch:
    """The job of a launcher; --world-size may give the number of GPUs that the command leaves open."""
    nodes, local = started["nodes"], started["local_world_size"]
    assert isinstance(nodes, int) and (local is None or isinstance(local, int))
    if local is None:
        if world_size is None:
            raise BadInput(
                f"{launcher} starts a process per GPU, and the number of GPUs is not given.",
                hint="Add --world-size with the number of all processes, before --.",
            )
        local = make_rank(0, world_size, local_world_size or (world_size // nodes or None)).local_world_size
        if local * nodes != world_size:
            raise BadInput(
                f"{launcher} uses {nodes} machines, among which {world_size} processes cannot be divided.",
                hint="Give a --world-size that is a multiple of the number of machines.",
            )
    total = local * max(nodes, 1)
    for option, wanted, value in (
        ("--world-size", world_size, total),
        ("--local-world-size", local_world_size, local),
    ):
        if wanted not in (None, value):
            raise BadInput(
                f"{launcher} starts {value} process{'es' if value > 1 else ''}"
                f"{' per machine' if 'local' in option else ''}, but {option} is {wanted}.",
                hint=f"Leave {option} out, or change the command or its config file.",
            )
    script, environment = str(started["script"]), started["environment"]
    assert isinstance(environment, dict) and isinstance(started["args"], list)
    arguments: list[str] = list(started["args"])
    is_one = nodes == 0
    most = started.get("most_nodes", nodes)
    note = f"the job may have {nodes} to {most} machines: it is predicted with {nodes}"
    return Launch(
        f"-m {script}" if started["module"] else str(Path(script)),
        tuple(arguments),
        None if is_one else total,
        None if is_one else local,
        dict(environment),
        () if is_one or most == nodes else (note,),
    )
