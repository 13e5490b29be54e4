"""`Recipe`: what `predict --model config.json` predicts, and the checks of its settings.

A Recipe stands for the step that the usual tools run (the Trainer of transformers, axolotl, LLaMA-Factory): a
model from its configuration, LoRA by PEFT, 4 bits by bitsandbytes, and sequences of full length.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import parse_json

TASKS = ("finetune", "lora", "qlora", "pretrain", "generate")
PRECISIONS = ("bf16", "mixed", "fp32")
SHARDINGS = ("ddp", "fsdp2")
MOST = 2**31  # of a size or a count
# The name of an optimizer -> the package it is imported from, and the call after its parameters.
OPTIMIZERS = {
    "adamw": ("torch", "torch.optim.AdamW(parameters, lr=1e-4, fused=True)"),
    "adamw-foreach": ("torch", "torch.optim.AdamW(parameters, lr=1e-4)"),
    "adamw8bit": ("bitsandbytes", "bitsandbytes.optim.AdamW8bit(parameters, lr=1e-4)"),
    "paged-adamw": ("bitsandbytes", "bitsandbytes.optim.PagedAdamW(parameters, lr=1e-4)"),
    "paged-adamw8bit": ("bitsandbytes", "bitsandbytes.optim.PagedAdamW8bit(parameters, lr=1e-4)"),
    "lion8bit": ("bitsandbytes", "bitsandbytes.optim.Lion8bit(parameters, lr=1e-4)"),
    "sgd": ("torch", "torch.optim.SGD(parameters, lr=1e-2)"),
}


@dataclass(frozen=True)
class Recipe:
    """config: the path of a config.json. targets: the modules that LoRA adapts; empty: all linear layers.

    sequence: tokens per sequence, or of the prompt. checkpointing None: as the tools do, on for fine-tuning.
    reasons: why the peak may differ from that of what the Recipe was read from.
    """

    config: Path
    task: str = "finetune"
    batch: int = 1
    sequence: int = 2048
    new_tokens: int = 256
    optimizer: str = "adamw"
    precision: str = "bf16"
    checkpointing: bool | None = None
    accumulation: int = 1
    lora_rank: int = 16
    targets: tuple[str, ...] = ()
    attention: str = ""
    sharding: str | None = None
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("task", self.task, TASKS),
            ("optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("precision", self.precision, PRECISIONS),
            *([("sharding", self.sharding, SHARDINGS)] if self.sharding is not None else []),
        ):
            if value not in choices:
                raise BadInput(f"There is no {name} {value!r}.", hint=f"Use one of: {', '.join(choices)}.")
        for name in ("batch", "sequence", "new_tokens", "accumulation", "lora_rank"):
            value = getattr(self, name)
            if not 1 <= value <= MOST:
                raise BadInput(
                    f"The {name.replace('_', ' ')} is {value}, but it must be from 1 to {MOST:,}.",
                    hint="Give a number in this range.",
                )
        if self.sharding is not None and self.task == "generate":
            raise BadInput(
                "Generation on several GPUs is not supported yet.",
                hint="Leave out --world-size and --sharding.",
            )
        if self.sharding == "fsdp2" and self.task not in ("finetune", "pretrain"):
            raise BadInput(
                f"FSDP2 is not supported for the task {self.task!r} yet.",
                hint="Use --sharding ddp, or the task finetune or pretrain.",
            )

    @property
    def name(self) -> str:
        return f"{self.config} ({self.task})"

    @property
    def recomputes(self) -> bool:
        """Whether activations are checkpointed."""
        return self.task != "pretrain" if self.checkpointing is None else self.checkpointing


def find_config(model: str, beside: Path | None = None) -> Path:
    """The config.json of a model: the file, its folder, or the name of a model in the local cache.

    beside: the file that names the model, if there is one; paths may be relative to it.
    """
    for folder in (Path(), *([beside.parent] if beside is not None else [])):
        path = folder / model
        if path.is_dir():
            path /= "config.json"
        if path.is_file():
            return path.resolve()
    with contextlib.suppress(ImportError, ValueError):  # a name that is not one of a model on the hub
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model, "config.json")
        if isinstance(cached, str):
            return Path(cached).resolve()
    raise BadInput(
        f"The model {model} is neither a config.json, a folder with one, nor in the local cache.",
        hint="Download its config.json, and give the path; nothing else of the model is needed.",
    )


# The largest supported values of the counts and widths in a config.json, by name; the first match counts.
_MOST = (
    (10_000, re.compile(r"layer|depth|(^|_)(heads?|experts?)(_|$)")),
    (2**24, re.compile(r"size|dim|width|embd|d_model|d_ff|d_kv|inner|position|rank|(^|_)(num|n|d)_")),
)


def read_config(path: Path) -> dict[str, Any]:
    """The content of a config.json."""
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"The file {path} cannot be read: {error}.", hint="Give a config.json.") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise BadInput(
            f"The file {path} has no model_type, so it is not the configuration of a model of transformers.",
            hint="Give the config.json of a model.",
        )
    _check_sizes(config, path)
    return config


def _check_sizes(config: dict[str, Any], path: Path, prefix: str = "") -> None:
    """Refuse widths and counts that no model has: building such a model allocates on this machine."""
    for name, value in config.items():
        if isinstance(value, dict):
            _check_sizes(value, path, f"{prefix}{name}.")
        kinds = [(most, pattern) for most, pattern in _MOST if pattern.search(name)]
        if not kinds or isinstance(value, bool) or not isinstance(value, int):
            continue
        most = kinds[0][0]
        if value > most:
            raise BadInput(
                f"In {path}, {prefix}{name} is {value:,}, but at most {most:,} is supported.",
                hint=f"Correct {prefix}{name} in the configuration.",
            )


def positions_notes(recipe: Recipe) -> list[str]:
    """A note if the text is longer than the positions that the model was made for."""
    config = read_config(recipe.config)
    positions = config.get("max_position_embeddings", config.get("n_positions"))
    tokens = recipe.sequence + (recipe.new_tokens if recipe.task == "generate" else 0)
    if not isinstance(positions, int) or tokens <= positions or config.get("is_encoder_decoder"):
        return []
    return [f"the model has {positions:,} positions, and the text {tokens:,} tokens: it may not run at all"]
