"""The script that a `Recipe` stands for, as text; it also runs on a GPU."""

from __future__ import annotations

import json

from pinchpoint.forecasting.recipes.recipe import OPTIMIZERS, Recipe, read_config

_DTYPES = {"bf16": "torch.bfloat16", "mixed": "torch.float32", "fp32": "torch.float32"}


def script_text(recipe: Recipe) -> str:
    """Return the source of a script with the arguments --batch, --sequence and, to generate, --new-tokens."""
    config = read_config(recipe.config)
    model_class = "AutoModelForSeq2SeqLM" if config.get("is_encoder_decoder") else "AutoModelForCausalLM"
    lines = [
        f'"""{_title(recipe)} of a {config["model_type"]} model, written by pinchpoint predict --model."""',
        "",
        "import argparse",
        *(["import os"] if recipe.sharding else []),
        *(["import tempfile"] if recipe.sharding != "fsdp2" else []),
        "",
        *_imports(recipe, model_class),
        "",
        "parser = argparse.ArgumentParser()",
        f'parser.add_argument("--batch", type=int, default={recipe.batch})',
        f'parser.add_argument("--sequence", type=int, default={recipe.sequence})',
    ]
    if recipe.task == "generate":
        lines.append(f'parser.add_argument("--new-tokens", type=int, default={recipe.new_tokens})')
    lines += ["args = parser.parse_args()", ""]
    if recipe.sharding:
        lines += [
            'torch.distributed.init_process_group("nccl")',
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        ]
    lines += [
        f"config = AutoConfig.from_pretrained({json.dumps(str(recipe.config))})",
        "vocabulary = config.get_text_config().vocab_size",
    ]
    lines += _sharded(recipe, model_class) if recipe.sharding == "fsdp2" else _loaded(recipe, model_class)
    lines += _generation() if recipe.task == "generate" else _training(recipe)
    return "\n".join(lines) + "\n"


def _title(recipe: Recipe) -> str:
    names = {
        "finetune": "Fine-tuning",
        "lora": "LoRA",
        "qlora": "QLoRA",
        "pretrain": "Training from scratch",
        "generate": "Generation",
    }
    return names[recipe.task]


def _imports(recipe: Recipe, model_class: str) -> list[str]:
    package, _ = OPTIMIZERS[recipe.optimizer]
    adapts = recipe.task in ("lora", "qlora")
    names = ["AutoConfig", model_class, *(["BitsAndBytesConfig"] if recipe.task == "qlora" else [])]
    peft = ["LoraConfig", "get_peft_model"]
    if recipe.task == "qlora":
        peft.append("prepare_model_for_kbit_training")
    return [
        *(["import bitsandbytes"] if package == "bitsandbytes" and recipe.task != "generate" else []),
        "import torch",
        *([f"from peft import {', '.join(peft)}"] if adapts else []),
        *(["from torch.distributed.fsdp import fully_shard"] if recipe.sharding == "fsdp2" else []),
        f"from transformers import {', '.join(names)}",
    ]


def _loaded(recipe: Recipe, model_class: str) -> list[str]:
    """A model that is loaded from a checkpoint; the checkpoint is made here, with random weights."""
    dtype = _DTYPES[recipe.precision]
    options = [f"dtype={dtype}", 'device_map={"": torch.cuda.current_device()}']
    if recipe.attention:
        options.append(f"attn_implementation={recipe.attention!r}")
    lines = [
        "with tempfile.TemporaryDirectory() as folder:  # stands for the folder of the model",
        f"    {model_class}.from_config(config, dtype={dtype}).save_pretrained(folder)",
    ]
    if recipe.task == "qlora":
        lines += [
            "    quantization = BitsAndBytesConfig(",
            "        load_in_4bit=True,",
            '        bnb_4bit_quant_type="nf4",',
            "        bnb_4bit_use_double_quant=True,",
            "        bnb_4bit_compute_dtype=torch.bfloat16,",
            "    )",
        ]
        options.append("quantization_config=quantization")
    return [
        *lines,
        f"    model = {model_class}.from_pretrained(",
        "        folder,",
        *(f"        {option}," for option in options),
        "    )",
    ]


def _sharded(recipe: Recipe, model_class: str) -> list[str]:
    options = f", attn_implementation={recipe.attention!r}" if recipe.attention else ""
    return [
        'with torch.device("meta"):',
        f"    model = {model_class}.from_config(config, dtype={_DTYPES[recipe.precision]}{options})",
        "layers = set(model._no_split_modules or ())",
        "for module in model.modules():",
        "    if type(module).__name__ in layers:",
        "        fully_shard(module)",
        "fully_shard(model)",
        'model.to_empty(device="cuda")',
        "with torch.no_grad():",
        "    for tensor in (*model.parameters(), *model.buffers()):",
        "        tensor.fill_(0.01)  # stands for the weights of the checkpoint",
    ]


def _training(recipe: Recipe) -> list[str]:
    lines = ["model.config.use_cache = False", "model.train()"]
    kwargs = 'gradient_checkpointing_kwargs={"use_reentrant": False}'
    if recipe.task == "qlora":
        options = kwargs if recipe.recomputes else "use_gradient_checkpointing=False"
        lines.append(f"model = prepare_model_for_kbit_training(model, {options})")
    elif recipe.recomputes:
        lines.append(f"model.gradient_checkpointing_enable({kwargs})")
    if recipe.task in ("lora", "qlora"):
        targets = repr(list(recipe.targets)) if recipe.targets else '"all-linear"'
        lines.append(
            f"model = get_peft_model(model, LoraConfig(r={recipe.lora_rank}, target_modules={targets}))"
        )
    if recipe.sharding == "ddp":
        lines.append(
            "model = torch.nn.parallel.DistributedDataParallel(model, "
            "device_ids=[torch.cuda.current_device()])"
        )
    _, optimizer = OPTIMIZERS[recipe.optimizer]
    lines += [
        "parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]",
        f"optimizer = {optimizer}",
        "",
        "for _ in range(3):",
    ]
    indent = "    "
    if recipe.accumulation > 1:
        lines.append(f"    for _ in range({recipe.accumulation}):")
        indent *= 2
    lines.append(f'{indent}tokens = torch.randint(0, vocabulary, (args.batch, args.sequence), device="cuda")')
    if recipe.precision == "fp32":
        lines.append(f"{indent}loss = model(input_ids=tokens, labels=tokens).loss")
    else:
        lines += [
            f'{indent}with torch.autocast("cuda", dtype=torch.bfloat16):',
            f"{indent}    loss = model(input_ids=tokens, labels=tokens).loss",
        ]
    divided = f" / {recipe.accumulation}" if recipe.accumulation > 1 else ""
    lines.append(f"{indent}{f'(loss{divided})' if divided else 'loss'}.backward()")
    return [*lines, "    optimizer.step()", "    optimizer.zero_grad()"]


def _generation() -> list[str]:
    return [
        "model.eval()",
        'prompts = torch.randint(0, vocabulary, (args.batch, args.sequence), device="cuda")',
        "tokens = model.generate(",
        "    prompts,",
        "    attention_mask=torch.ones_like(prompts),",
        "    max_new_tokens=args.new_tokens,",
        "    min_new_tokens=args.new_tokens,",
        "    do_sample=False,",
        "    pad_token_id=0,",
        ")",
    ]
