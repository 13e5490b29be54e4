"""The cases of this benchmark: a program, its arguments, and the rank of a job that it is run as."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from programs import Program, choose, read_program

PROGRAMS = Path(__file__).parent / "programs"

# name: (program, arguments, rank, world size)
CASES: dict[str, tuple[str, str, int, int]] = {
    "gpt2_fsdp2_4": ("fsdp2", "", 0, 4),
    "gpt2_fsdp2_64": ("fsdp2", "", 0, 64),
    "gpt2_fsdp2_last_8": ("fsdp2", "", 7, 8),
    "gpt2_fsdp2_fp32_8": ("fsdp2", "--precision fp32", 0, 8),
    "gpt2_fsdp2_checkpointing_8": ("fsdp2", "--checkpointing", 0, 8),
    "gpt2_fsdp2_kept_8": ("fsdp2", "--keep-gathered", 0, 8),
    "gpt2_fsdp2_hybrid_16": ("fsdp2", "--hybrid 4", 0, 16),
    "gpt2_fsdp2_offload_8": ("fsdp2", "--offload", 0, 8),
    "llama_fsdp2_8": ("fsdp2", "--model llama", 0, 8),
    "llama_fsdp2_64": ("fsdp2", "--model llama", 0, 64),
    "llama_fsdp2_checkpointing_64": ("fsdp2", "--model llama --checkpointing", 0, 64),
    "llama_fsdp2_kept_16": ("fsdp2", "--model llama --keep-gathered", 0, 16),
    "gpt2_fsdp1_4": ("fsdp1", "", 0, 4),
    "gpt2_fsdp1_orig_8": ("fsdp1", "--orig-params", 0, 8),
    "gpt2_fsdp1_fp32_8": ("fsdp1", "--precision fp32", 0, 8),
    "gpt2_fsdp1_checkpointing_8": ("fsdp1", "--checkpointing", 0, 8),
    "gpt2_fsdp1_grad_op_16": ("fsdp1", "--strategy SHARD_GRAD_OP", 0, 16),
    "gpt2_fsdp1_no_shard_4": ("fsdp1", "--strategy NO_SHARD", 0, 4),
    "llama_fsdp1_8": ("fsdp1", "--model llama", 0, 8),
    "llama_fsdp1_checkpointing_64": ("fsdp1", "--model llama --checkpointing --orig-params", 0, 64),
    "llama_fsdp1_grad_op_32": ("fsdp1", "--model llama --strategy SHARD_GRAD_OP", 0, 32),
    "gpt2_ddp_2": ("ddp", "", 0, 2),
    "gpt2_ddp_views_2": ("ddp", "--bucket-views --static-graph", 0, 2),
    "gpt2_ddp_compressed_2": ("ddp", "--compress --bucket-mb 100", 0, 2),
    "gpt2_zero_2": ("ddp", "--zero", 0, 2),
    "llama_sequence_8": ("tensor_parallel", "--sequence", 0, 8),
    "gpt2_gpipe_first_4": ("pipeline", "--schedule gpipe", 0, 4),
    "gpt2_1f1b_first_4": ("pipeline", "", 0, 4),
    "gpt2_1f1b_second_4": ("pipeline", "", 1, 4),
    "gpt2_1f1b_last_4": ("pipeline", "", 3, 4),
}


def find_cases(only: str | None = None) -> list[Program]:
    """Return all cases, or those whose name or program is in the comma-separated list `only`."""
    return choose([_case(name) for name in CASES], only)


def _case(name: str) -> Program:
    file, args, rank, world_size = CASES[name]
    program = read_program(PROGRAMS / f"{file}.py")
    about = f"`{file}.py {args}`".replace(" `", "`") + f" as rank {rank} of {world_size}"
    return replace(
        program,
        name=f"{file}/{name}",
        about=about,
        args=tuple(args.split()),
        ranks=(rank, world_size),
        has_peers=file == "ddp",
    )
