"""Read the command of a launcher, torchrun or `accelerate launch`, with the launcher's own code.

Runs in a process of its own: the launcher parses its command line and its config file and sets the variables
of the processes, and is stopped where it would start them. What it would start is written as JSON.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pinchpoint.core import errors
from pinchpoint.core.errors import BadInput, Missing, PinchpointError

_GPUS = ("gpu", "auto", "unknown")  # as many processes as a machine has GPUs
_TITLES = {"torchrun": "torchrun", "accelerate": "accelerate launch"}
_EXAMPLES = {"torchrun": "--nproc-per-node 8 train.py", "accelerate": "--config_file fsdp.yaml train.py"}
_NOT_MODELLED = {
    "tpu_launcher": "TPUs",
    "tpu_pod_launcher": "TPUs",
    "sagemaker_launcher": "a job on SageMaker",
}


class _Launch(BaseException):
    """Raised in place of starting processes. Not an Exception, so that the launcher does not handle it."""

    def __init__(self, **about: Any) -> None:
        super().__init__()
        self.about = about


class _GpuCount(int):
    """The number of GPUs of a machine that is not this one."""

    def __str__(self) -> str:
        return "unknown"


def read(command: Sequence[str]) -> dict[str, Any]:
    """What a launcher would start: script, module, args, nodes, local_world_size, environment.

    command: `torchrun` or `accelerate`, and the arguments of `torchrun` or of `accelerate launch`.
    local_world_size is None if it is the number of GPUs of the machine, and if one process without a group is
    started, nodes is 0.
    """
    name, *arguments = command
    before = dict(os.environ)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            (_run_torchrun if name == "torchrun" else _run_accelerate)(arguments)
    except _Launch as launch:
        after: dict[str, str] = launch.about.pop("environment")
        changed = {key: value for key, value in after.items() if before.get(key) != value}
        changed.pop("CUDA_VISIBLE_DEVICES", None)  # the GPUs are simulated
        return {**launch.about, "environment": changed}
    except PinchpointError:
        raise
    except SystemExit as error:
        last = printed.getvalue().strip().splitlines()[-1:] or [f"exit code {error.code}"]
        text = last[0].partition("error: ")[2] or last[0]
        raise _bad_command(name, text) from error
    except Exception as error:
        raise _bad_command(name, " ".join(str(error).split()).partition(". ")[0]) from error
    raise _bad_command(name, "it starts no process")


def _bad_command(name: str, text: str) -> BadInput:
    text = text if text.endswith((".", "!")) else f"{text}."
    return BadInput(
        f"{_TITLES[name]} does not accept its command: {text}",
        hint=f"Give the command as you would run it, such as predict -- {_TITLES[name]} {_EXAMPLES[name]}.",
    )


def _run_torchrun(arguments: Sequence[str]) -> None:
    import torch.distributed.run as torchrun

    torchrun.run = _take_torchrun
    torchrun.main(arguments)


def _take_torchrun(args: Any) -> NoReturn:
    """Take what torchrun would start from its parsed arguments; accelerate passes them too."""
    from torch.distributed.run import parse_min_max_nnodes

    if args.no_python:
        raise BadInput(
            f"{args.training_script} is not a Python script.", hint="Give the script that it runs instead."
        )
    text = str(args.nproc_per_node)
    if not text.isdigit() and text not in _GPUS:
        raise BadInput(f"--nproc-per-node {text} is not supported.", hint="Give a number of GPUs.")
    least, most = parse_min_max_nnodes(str(args.nnodes))
    raise _Launch(
        script=args.training_script,
        module=bool(args.module),
        args=list(args.training_script_args),
        nodes=least,
        most_nodes=most,
        local_world_size=None if text in _GPUS else int(text),
        environment=dict(os.environ),
    )


def _run_accelerate(arguments: Sequence[str]) -> None:
    import torch

    try:
        from accelerate.commands import launch
        from accelerate.utils import launch as preparation
    except ImportError as error:
        raise Missing(
            "The package accelerate is not installed.", hint="Run pip install accelerate."
        ) from error
    import torch.distributed.run as torchrun

    # The machine that the command is for has GPUs.
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: _GpuCount(8)
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    preparation.is_port_in_use = lambda *_: False
    launch.check_cuda_p2p_ib_support = lambda: True
    torchrun.run = _take_accelerate
    subprocess.Popen = _take_process  # pyright: ignore[reportAttributeAccessIssue]
    if importlib.util.find_spec("deepspeed") is None:
        launch.deepspeed_launcher = _miss_deepspeed
    for name, what in _NOT_MODELLED.items():
        setattr(launch, name, _refuse(what))
    parsed = launch.launch_command_parser().parse_args(arguments)
    if parsed.tpu:
        _refuse("TPUs")()
    launch.launch_command(parsed)


def _take_accelerate(args: Any) -> NoReturn:
    if os.environ.get("ACCELERATE_USE_MEGATRON_LM") == "true":
        _refuse("Megatron-LM")()
    _take_torchrun(args)


def _miss_deepspeed(args: Any) -> NoReturn:
    raise Missing(
        "The command of accelerate asks for DeepSpeed, which is not installed.",
        hint="Run DS_BUILD_OPS=0 pip install deepspeed, which needs no GPU.",
    )


def _take_process(command: list[str], env: dict[str, str], **_: Any) -> NoReturn:
    """Take the single process that accelerate would start: python [-m] script arguments."""
    if command[0] == "deepspeed":
        raise BadInput(
            "The command of accelerate starts DeepSpeed's own launcher, which is not supported yet.",
            hint="Set deepspeed_multinode_launcher: standard in the config file.",
        )
    is_module = command[1:2] == ["-m"]
    script, *arguments = command[2 if is_module else 1 :]
    raise _Launch(
        script=script, module=is_module, args=arguments, nodes=0, local_world_size=1, environment=env
    )


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise BadInput(
            f"The command of accelerate asks for {what}, which pinchpoint does not support yet.",
            hint="Use a config file whose distributed_type is MULTI_GPU or FSDP.",
        )

    return refuse


def main() -> None:
    try:
        answer = read(json.loads(sys.stdin.read()))
    except PinchpointError as error:
        answer = errors.to_dict(error)
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
