"""The cases of this benchmark: a program, its arguments, and the rank of a job that it is run as."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from programs import Program, choose, read_program  # pyright: ignore[reportAttributeAccessIssue]

PROGRAMS = Path(__file__).parent / "programs"

LAUNCH = Path(__file__).parent / "launch"  # config files of accelerate
FSDP = "--fsdp 'full_shard auto_wrap'"

# name: (program, arguments, rank, world size). A program runs as by torchrun, or as `LAUNCHED` says.
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
    "llama_context_8": ("context_parallel", "", 0, 8),
    "llama_context_ring_16": (
        "context_parallel",
        "--rotate alltoall --sequence 65536 --checkpointing",
        3,
        16,
    ),
    "gpt2_gpipe_first_4": ("pipeline", "--schedule gpipe", 0, 4),
    "gpt2_1f1b_first_4": ("pipeline", "", 0, 4),
    "gpt2_1f1b_second_4": ("pipeline", "", 1, 4),
    "gpt2_1f1b_last_4": ("pipeline", "", 3, 4),
    "gpt2_fsdp1_hybrid_16": ("fsdp1", "--strategy HYBRID_SHARD --hybrid 4", 0, 16),
    "gpt2_fsdp1_offload_8": ("fsdp1", "--offload", 0, 8),
    "gpt2_fsdp2_selective_8": ("fsdp2", "--selective", 0, 8),
    "gpt2_fsdp2_saved_on_cpu_8": ("fsdp2", "--save-on-cpu", 0, 8),
    "gpt2_ddp_unused_2": ("ddp", "--find-unused", 0, 2),
    "trainer_fsdp1_8": ("hf_trainer", FSDP, 0, 8),
    "trainer_fsdp2_8": ("hf_trainer", f"{FSDP} --version 2", 0, 8),
    "trainer_ddp_2": ("hf_trainer", "", 0, 2),
    "accelerate_trainer_fsdp2_8": ("hf_trainer", "--checkpointing", 0, 8),
    "accelerate_fsdp1_8": ("accelerate_loop", "", 0, 8),
    "accelerate_fsdp1_checkpointing_16": ("accelerate_loop", "", 0, 16),
    "accelerate_fsdp2_8": ("accelerate_loop", "", 0, 8),
    "accelerate_ddp_2": ("accelerate_loop", "--accumulate 2", 0, 2),
    "lightning_fsdp_8": ("lightning_trainer", "", 0, 8),
    "lightning_fsdp_checkpointing_8": ("lightning_trainer", "--checkpointing", 0, 8),
    "lightning_model_parallel_8": ("lightning_trainer", "--strategy model_parallel", 0, 8),
    "lightning_ddp_2": ("lightning_trainer", "--strategy ddp", 0, 2),
    "gpt2_zero1_8": ("deepspeed_zero", "--stage 1", 0, 8),
    "gpt2_zero2_8": ("deepspeed_zero", "--stage 2 --bucket 5e7", 0, 8),
    "gpt2_zero3_8": ("deepspeed_zero", "--stage 3", 0, 8),
}
# The config file with which `accelerate launch` starts a case.
LAUNCHED = {
    "accelerate_trainer_fsdp2_8": "fsdp2.yaml",
    "accelerate_fsdp1_8": "fsdp1.yaml",
    "accelerate_fsdp1_checkpointing_16": "fsdp1_checkpointing.yaml",
    "accelerate_fsdp2_8": "fsdp2.yaml",
    "accelerate_ddp_2": "ddp.yaml",
}


def find_cases(only: str | None = None) -> list[Program]:
    """Return all cases, or those whose name or program is in the comma-separated list `only`."""
    return choose([_case(name) for name in CASES], only)


def _case(name: str) -> Program:
    file, args, rank, world_size = CASES[name]
    program = read_program(PROGRAMS / f"{file}.py")
    about = f"`{file}.py {args}`".replace(" `", "`") + f" as rank {rank} of {world_size}"
    config = LAUNCHED.get(name)
    if config is not None:
        about += f", by `accelerate launch --config_file {config}`"
    return replace(
        program,
        name=f"{file}/{name}",
        about=about,
        args=tuple(shlex.split(args)),
        ranks=(rank, world_size),
        has_peers=file == "ddp" or "_ddp_" in name,
        launcher=("accelerate", "launch", "--config_file", str(LAUNCH / config)) if config else (),
    )
