"""The GPUs to request from SLURM or Kubernetes for a forecast, as text to paste into a job.

A request states what the forecast knows: how many GPUs, on how many machines, and how much memory each must
have. The memory of the host, CPUs and time are not part of a forecast, and the text says so.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pinchpoint.core.errors import BadInput
from pinchpoint.core.ranks import Rank, make_rank
from pinchpoint.core.records import Forecast
from pinchpoint.core.units import MIB, show_bytes, show_choices
from pinchpoint.forecasting.cards import Card, card, cards

KINDS = ("slurm", "kubernetes")
# CUDA reports up to 8 % less memory to a process than the label of a node says (see forecasting/cards.py).
LABEL_SHARE = 0.92


@dataclass(frozen=True)
class GpuRequest:
    """need_bytes: the memory that each GPU must have, as CUDA reports it, margin included.

    fits: whether it is known to suffice; None if the forecast has reasons to be too low.
    """

    command: tuple[str, ...]
    nodes: int
    gpus_per_node: int
    processes_per_node: int
    need_bytes: int
    card: Card | None
    fits: bool | None
    about: tuple[str, ...]  # what the forecast says, as sentences


def gpu_request(
    forecast: Forecast,
    *,
    card_name: str | None,
    command: Sequence[str] = (),
    local_world_size: int | None = None,
) -> GpuRequest:
    """Return the request for a forecast. command: what starts the script without a launcher."""
    rank = make_rank(0, forecast.world_size or 1, local_world_size)
    named = None if card_name is None else card(card_name)
    own_bytes = forecast.needs_bytes or forecast.total_bytes - forecast.context_bytes + forecast.margin_bytes
    known = list(cards().values()) if named is None else [named]
    context_bytes = max(one.context_high_bytes for one in known)
    need_bytes = own_bytes + context_bytes + (forecast.nccl_high_bytes or 0)
    if named is not None:
        fits = forecast.fits[forecast.card]
    else:
        fits = None if None in forecast.fits.values() else any(forecast.fits.values())
    processes = rank.local_world_size if forecast.rank is not None else 1
    return GpuRequest(
        command=tuple(command),
        nodes=rank.world_size // rank.local_world_size,
        gpus_per_node=rank.local_world_size,
        processes_per_node=processes,
        need_bytes=need_bytes,
        card=named,
        fits=fits,
        about=_about(forecast, named, need_bytes, fits, rank),
    )


def check_kind(kind: str) -> None:
    """Raise if there is no such kind of request."""
    if kind not in KINDS:
        raise BadInput(f"There is no request for {kind!r}.", hint=f"Use --request {show_choices(KINDS)}.")


def launch_words(target: str, args: Sequence[str]) -> tuple[str, ...]:
    """The command that starts a script; nothing for a target that is not one."""
    if target.startswith("-m "):
        return ("python", "-m", target.removeprefix("-m "), *args)
    return ("python", target, *args) if target.endswith(".py") else ()


def request_text(request: GpuRequest, kind: str) -> str:
    """Return the request as lines for `sbatch`, or as a pod for Kubernetes."""
    check_kind(kind)
    return _slurm(request) if kind == "slurm" else _kubernetes(request)


def _about(
    forecast: Forecast, named: Card | None, need_bytes: int, fits: bool | None, rank: Rank
) -> tuple[str, ...]:
    each = " in each process" if rank.world_size > 1 else ""
    need = f"needs at most {show_bytes(need_bytes)} of GPU memory{each}, margin included"
    sentences = [f"{forecast.target} {need}."]
    if fits is None:
        sentences[0] = f"Unknown whether this suffices: {forecast.target} may need more."
        sentences += [f"The peak may be higher: {reason}" for reason in forecast.reasons]
    elif fits and named is not None and need_bytes > named.memory_bytes:
        sentences = [
            f"{forecast.target} fits {named.name} if the allocator frees cached blocks, as PyTorch does when"
            " memory runs out."
        ]
    if named is not None:
        sentences.append(f"The card {named.name} has {show_bytes(named.memory_bytes)}.")
    elif fits is not None:
        fitting = [name for name, answer in forecast.fits.items() if answer]
        smallest = (
            f"The smallest known card that fits is {fitting[0]}." if fitting else "It fits no known card."
        )
        sentences.append(smallest)
    return tuple(sentences)


def _slurm(request: GpuRequest) -> str:
    kind = "" if request.card is None else f"{request.card.name}:"
    lines = ["#!/bin/bash", *(f"# {sentence}" for sentence in request.about)]
    if request.card is None:
        lines.append("# sbatch cannot ask for GPU memory: choose a partition or a --constraint that has it.")
    else:
        lines.append("# The name of the card is the cluster's own: `sinfo -o %G` lists the names.")
    lines += [
        f"#SBATCH --nodes={request.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={kind}{request.gpus_per_node}",
        "# Not part of the forecast: --mem (memory of the host), --cpus-per-task, --time.",
    ]
    if request.command:
        lines += ["", *_launch(request)]
    return "\n".join(lines)


def _launch(request: GpuRequest) -> list[str]:
    """The lines that start the script: with torchrun if it has several processes."""
    if request.processes_per_node * request.nodes == 1:
        return [f"srun {shlex.join(request.command)}"]
    torchrun = [f"--nnodes={request.nodes}", f"--nproc-per-node={request.processes_per_node}"]
    script = shlex.join(request.command[1:])
    if request.nodes == 1:
        return [f"srun torchrun --standalone {' '.join(torchrun)} {script}"]
    return [
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"srun torchrun {' '.join(torchrun)} --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d \\",
        f'  --rdzv-endpoint="$head:29500" {script}',
    ]


def _kubernetes(request: GpuRequest) -> str:
    lines = [f"# {sentence}" for sentence in request.about]
    if request.card is None:
        least_mib = math.ceil(request.need_bytes / LABEL_SHARE / MIB)
    else:
        least_mib = request.card.memory_bytes // MIB - 1
        lines.append(
            f"# The selector asks for the memory of {request.card.name}, not for its name: the label"
            " nvidia.com/gpu.product has the cluster's name for it."
        )
    if request.nodes > 1:
        lines.append(f"# One of {request.nodes} pods: start them together, for example with a PyTorchJob.")
    lines.append("# Not part of the forecast: the memory of the host (requests.memory), CPUs, /dev/shm.")
    lines += [
        "apiVersion: v1",
        "kind: Pod",
        "metadata:",
        "  name: train",
        "spec:",
        "  restartPolicy: Never",
        "  affinity:",
        "    nodeAffinity:",
        "      requiredDuringSchedulingIgnoredDuringExecution:",
        "        nodeSelectorTerms:",
        "          - matchExpressions:",
        f'              - {{key: nvidia.com/gpu.memory, operator: Gt, values: ["{least_mib}"]}}  # MiB',
        "  containers:",
        "    - name: train",
        "      image: IMAGE  # with the script and its packages",
    ]
    if request.command:
        lines.append(f"      command: [{', '.join(_quoted(word) for word in _words(request))}]")
    lines += ["      resources:", "        limits:", f"          nvidia.com/gpu: {request.gpus_per_node}"]
    return "\n".join(lines)


def _words(request: GpuRequest) -> list[str]:
    if request.processes_per_node * request.nodes == 1:
        return list(request.command)
    launcher = ["torchrun", f"--nnodes={request.nodes}", f"--nproc-per-node={request.processes_per_node}"]
    return [*launcher, *request.command[1:]]


def _quoted(word: str) -> str:
    """A word as a YAML string in double quotes."""
    return json.dumps(word, ensure_ascii=False)
