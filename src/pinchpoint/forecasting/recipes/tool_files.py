"""Recipes from the YAML files of axolotl and LLaMA-Factory.

Keys that change the memory and are not modelled are refused by name. Other keys that are not known are a
reason, so that it is unknown whether the step fits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.forecasting.recipes.recipe import MOST, find_config

_OPTIMIZERS = {
    "adamw": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_torch": "adamw-foreach",
    "adamw_bnb_8bit": "adamw8bit",
    "adamw_8bit": "adamw8bit",
    "paged_adamw_8bit": "paged-adamw8bit",
    "paged_adamw_32bit": "paged-adamw",
    "paged_adamw": "paged-adamw",
    "lion_8bit": "lion8bit",
    "sgd": "sgd",
}
# Keys that change the memory in ways that are not modelled, unless they are off.
_REFUSED = {
    "context_parallel_size",
    "deepspeed",
    "enable_liger_kernel",
    "fsdp",
    "fsdp_config",
    "lisa_n_layers",
    "load_in_8bit",
    "lora_modules_to_save",
    "plugins",
    "ray_num_workers",
    "relora",
    "rl",
    "tensor_parallel_size",
    "use_apollo",
    "use_badam",
    "use_dora",
    "use_galore",
    "use_unsloth",
}
_AXOLOTL = {
    "base_model",
    "adapter",
    "load_in_4bit",
    "sequence_len",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "optimizer",
    "bf16",
    "fp16",
    "gradient_checkpointing",
    "flash_attention",
    "sdp_attention",
    "lora_r",
    "lora_target_modules",
    "lora_target_linear",
}
_FACTORY = {
    "model_name_or_path",
    "stage",
    "finetuning_type",
    "quantization_bit",
    "cutoff_len",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "optim",
    "bf16",
    "fp16",
    "pure_bf16",
    "disable_gradient_checkpointing",
    "flash_attn",
    "lora_rank",
    "lora_target",
}
# Keys that say nothing about the memory of the step, by how they begin.
_HARMLESS = (
    "data",
    "val_",
    "eval_s",
    "eval_d",
    "evals_per",
    "evaluation_strategy",
    "output",
    "num_",
    "max_s",
    "max_grad",
    "learning_rate",
    "lr_",
    "warmup",
    "weight_d",
    "wandb",
    "logging",
    "save",
    "hub_",
    "seed",
    "lora_alpha",
    "lora_dropout",
    "template",
    "do_",
    "preprocess",
    "overwrite",
    "report_to",
    "plot",
    "special",
    "tokens",
    "chat",
    "ddp_timeout",
    "resume",
    "early_",
    "debug",
    "train_on",
    "strict",
    "mlflow",
    "shuffle",
    "tf32",
    "trust",
    "tokenizer",
    "model_type",
    "pad_to",
    "saves",
    "sample_packing",
    "group_by",
    "auto_resume",
    "local_rank",
    "dataloader",
    "remove_unused",
    "adam_",
)

# The batch of an evaluation -> what it is if it is not set; None: that of the training.
_BATCHES = {"eval_batch_size": None, "per_device_eval_batch_size": 8}
_EVALUATES = ("val_set_size", "val_size", "test_datasets", "eval_dataset", "do_eval")


def is_tool_file(path: str) -> bool:
    return path.endswith((".yml", ".yaml"))


def read_recipe(path: Path) -> dict[str, Any]:
    """The fields of a Recipe from a YAML file."""
    settings = _read(path)
    refused = sorted(key for key in _REFUSED & settings.keys() if settings[key])
    if refused:
        raise BadInput(
            f"The file {path} sets {', '.join(refused)}, which predict --model does not support yet.",
            hint="Remove the setting to see the forecast without it, or predict the training script itself.",
        )
    if "base_model" in settings:
        fields, known = _axolotl(settings), _AXOLOTL
    elif "model_name_or_path" in settings:
        fields, known = _factory(settings), _FACTORY
    else:
        raise BadInput(
            f"The file {path} does not name a model.",
            hint="Give a file of axolotl (base_model) or LLaMA-Factory (model_name_or_path).",
        )
    model = str(settings.get("base_model") or settings.get("model_name_or_path"))
    unread = sorted(
        key
        for key in settings.keys() - known - _REFUSED
        if key not in _BATCHES and not key.startswith(_HARMLESS)
    )
    reasons = [f"these settings of {path.name} were not considered: {', '.join(unread)}"] if unread else []
    reasons += _evaluation(settings, fields["batch"])
    if settings.get("sample_packing") and fields["attention"] != "flash_attention_2":
        reasons.append("samples are packed without flash attention, whose masks were not considered")
    return {"config": find_config(model, path), "reasons": tuple(reasons), **fields}


def _read(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise Missing("PyYAML is not installed.", hint="Run pip install pyyaml.") from error
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise BadInput(
            f"The file {path} cannot be read: {str(error)[:300]}.", hint="Give a YAML file."
        ) from error
    if not isinstance(settings, dict):
        raise BadInput(f"The file {path} has no settings.", hint="Give a file of axolotl or LLaMA-Factory.")
    return {str(key): value for key, value in settings.items()}


def _count(settings: dict[str, Any], key: str, default: int) -> int:
    value = settings.get(key) or default
    if not isinstance(value, int) or not 1 <= value <= MOST:
        raise BadInput(
            f"The setting {key}: {str(value)[:40]} is not a number from 1 to {MOST:,}.",
            hint="Correct it, or leave it out.",
        )
    return int(value)


def _words(settings: dict[str, Any], key: str) -> list[str]:
    """The names in a setting that is a list, or a text with commas."""
    value = settings.get(key) or []
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list):
        raise BadInput(f"The setting {key}: {str(value)[:40]} is not a list.", hint="Give a list of names.")
    return [str(name).strip() for name in names]


def _choice(value: Any, choices: dict[Any, str], key: str) -> str:
    if not isinstance(value, (str, int, type(None))) or value not in choices:
        known = ", ".join(str(choice) for choice in choices if choice is not None)
        raise BadInput(
            f"The setting {key}: {value} is not supported by predict --model yet.",
            hint=f"Use one of: {known}.",
        )
    return choices[value]


def _evaluation(settings: dict[str, Any], batch: int) -> list[str]:
    """A reason if an evaluation has larger batches than the training, which alone is predicted."""
    is_axolotl = "base_model" in settings
    key = "eval_batch_size" if is_axolotl else "per_device_eval_batch_size"
    size = _count(settings, key, _BATCHES[key] or batch)
    strategy = settings.get("eval_strategy", settings.get("evaluation_strategy"))
    evaluates = any(settings.get(name) for name in _EVALUATES) or strategy not in (None, False, "no")
    if size <= batch or not (evaluates or key in settings):
        return []
    return [f"an evaluation has batches of {size}, those of the training have {batch}: it was not considered"]


def _axolotl(settings: dict[str, Any]) -> dict[str, Any]:
    task = _choice(
        settings.get("adapter") or None, {None: "finetune", "lora": "lora", "qlora": "qlora"}, "adapter"
    )
    if task == "lora" and settings.get("load_in_4bit"):
        task = "qlora"
    modules = settings.get("lora_target_modules")
    attention = "flash_attention_2" if settings.get("flash_attention") else ""
    half = settings.get("bf16") in (True, "auto", "true", "full")
    return {
        "task": task,
        "batch": _count(settings, "micro_batch_size", 1),
        "sequence": _count(settings, "sequence_len", 512),
        "accumulation": _count(settings, "gradient_accumulation_steps", 1),
        "optimizer": _choice(settings.get("optimizer") or "adamw_torch_fused", _OPTIMIZERS, "optimizer"),
        "precision": "bf16" if half else "mixed" if settings.get("fp16") else "fp32",
        "checkpointing": bool(settings.get("gradient_checkpointing")),
        "lora_rank": _count(settings, "lora_r", 8),
        "targets": ()
        if isinstance(modules, str) or settings.get("lora_target_linear")
        else tuple(_words(settings, "lora_target_modules")),
        "attention": attention,
    }


def _factory(settings: dict[str, Any]) -> dict[str, Any]:
    _choice(settings.get("stage") or "sft", {"sft": "", "pt": ""}, "stage")
    full = {"full": "finetune", "lora": "lora"}
    task = _choice(settings.get("finetuning_type") or "lora", full, "finetuning_type")
    bits = settings.get("quantization_bit")
    if bits is not None:
        _choice(bits, {4: ""}, "quantization_bit")
        task = "qlora"
    names = _words(settings, "lora_target") or ["all"]
    # Weights that are trained are kept in fp32 unless pure_bf16 is set; frozen ones are in bf16.
    half = settings.get("bf16") or settings.get("fp16")
    precision = "fp32" if not (half or settings.get("pure_bf16")) else "bf16"
    if task == "finetune" and half and not settings.get("pure_bf16"):
        precision = "mixed"
    attention = {"fa2": "flash_attention_2", "disabled": "eager", "sdpa": "sdpa", "auto": ""}
    return {
        "task": task,
        "batch": _count(settings, "per_device_train_batch_size", 8),
        "sequence": _count(settings, "cutoff_len", 2048),
        "accumulation": _count(settings, "gradient_accumulation_steps", 1),
        "optimizer": _choice(settings.get("optim") or "adamw_torch_fused", _OPTIMIZERS, "optim"),
        "precision": precision,
        "checkpointing": not settings.get("disable_gradient_checkpointing"),
        "lora_rank": _count(settings, "lora_rank", 8),
        "targets": () if names == ["all"] else tuple(names),
        "attention": _choice(settings.get("flash_attn") or "auto", attention, "flash_attn"),
    }
