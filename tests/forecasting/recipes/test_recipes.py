"""Recipes: scripts from a model's configuration, and from the files of training tools."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.forecasting.recipes.model_forecast import read_model
from pinchpoint.forecasting.recipes.recipe import OPTIMIZERS, Recipe, positions_notes
from pinchpoint.forecasting.recipes.script import script_text

CONFIG = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def read(model: Path | str | None, **options: Any) -> Recipe | None:
    given: dict[str, Any] = {"target": None, "world_size": None, "script": None} | options
    return read_model(None if model is None else str(model), **given)


def test_every_recipe_is_a_script_that_python_can_read(config: Path) -> None:
    variations: list[dict[str, Any]] = [
        *({"task": task, "optimizer": name} for task in ("finetune", "lora") for name in OPTIMIZERS),
        {"task": "qlora", "checkpointing": False},
        {"task": "pretrain", "precision": "mixed", "accumulation": 4},
        {"task": "generate", "new_tokens": 7},
        {"task": "finetune", "sharding": "fsdp2", "attention": "sdpa"},
        {"task": "lora", "sharding": "ddp", "targets": ("q_proj",)},
    ]
    for fields in variations:
        text = script_text(Recipe(config, **fields))
        tree = ast.parse(text)
        imported = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert imported <= used, fields
        assert max(map(len, text.replace(str(config), "config.json").splitlines())) <= 120


def test_a_script_says_what_the_recipe_says(config: Path) -> None:
    text = script_text(Recipe(config, task="qlora", batch=3, sequence=77, lora_rank=5, optimizer="adamw8bit"))
    for part in ("default=3)", "default=77)", "r=5", "AdamW8bit", '"nf4"', "prepare_model_for_kbit_training"):
        assert part in text
    encoder_decoder = config.with_name("other.json")
    encoder_decoder.write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    assert "AutoModelForSeq2SeqLM" in script_text(Recipe(encoder_decoder))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "distil"}, "no task 'distil'"),
        ({"optimizer": "adam"}, "no optimizer 'adam'"),
        ({"precision": "int4"}, "no precision 'int4'"),
        ({"batch": 0}, "batch is 0"),
        ({"sequence": 10**20}, "from 1 to 2,147,483,648"),
        ({"world_size": 8, "task": "generate"}, "Generation on several GPUs"),
        ({"sharding": "fsdp2"}, "several processes"),
        ({"sharding": "fsdp2", "world_size": 8, "task": "lora"}, "FSDP2 is not supported"),
        ({"target": "train.py"}, "Both the target"),
    ],
)
def test_bad_options_are_named(config: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read(config, **options)


@pytest.mark.parametrize(
    ("options", "noted"),
    [({"sequence": 64}, False), ({"sequence": 65}, True), ({"sequence": 60, "task": "generate"}, True)],
)
def test_a_text_longer_than_the_positions_of_the_model_is_noted(
    tmp_path: Path, options: dict[str, Any], noted: bool
) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt2", "n_positions": 64}')
    notes = positions_notes(Recipe(path, **options))
    assert bool(notes) == noted and all("has 64 positions" in note for note in notes)


def test_options_of_a_recipe_need_a_model() -> None:
    with pytest.raises(BadInput, match="--batch can only be used with --model"):
        read(None, target="train.py", batch=3)
    with pytest.raises(BadInput, match="Neither a target nor a model"):
        read(None)
    assert read(None, target="train.py") is None


def test_a_model_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="neither a config"):
        read(tmp_path / "nothing.json")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadInput, match="no model_type"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", 10**12), ("num_hidden_layers", 10**6), ("vocab_size", 10**400), ("n_embd", 10**9)],
)
def test_absurd_sizes_are_refused_before_a_model_is_built(config: Path, name: str, value: int) -> None:
    for contents in ({**CONFIG, name: value}, {**CONFIG, "text_config": {name: value}}):
        config.write_text(json.dumps(contents))
        with pytest.raises(BadInput, match=rf"{name} is .*at most|cannot be read"):
            read(config)


def test_sizes_of_the_largest_models_are_accepted(config: Path) -> None:
    sizes = {"max_position_embeddings": 10_485_760, "vocab_size": 1_100_000, "hidden_size": 53_248}
    config.write_text(json.dumps({**CONFIG, **sizes, "num_hidden_layers": 126, "bos_token_id": 2**31}))
    assert read(config) is not None


AXOLOTL = """
base_model: .
adapter: qlora
load_in_4bit: true
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: paged_adamw_8bit
bf16: auto
gradient_checkpointing: true
flash_attention: true
lora_r: 32
lora_target_linear: true
learning_rate: 0.0002
datasets: []
"""
FACTORY = """
model_name_or_path: .
stage: sft
finetuning_type: full
cutoff_len: 1024
per_device_train_batch_size: 2
bf16: true
optim: adamw_torch
"""


def test_files_of_axolotl_and_llama_factory_are_read(config: Path) -> None:
    pytest.importorskip("yaml")
    path = config.with_name("train.yml")
    path.write_text(AXOLOTL)
    assert read(path) == Recipe(
        config.resolve(),
        task="qlora",
        batch=2,
        sequence=4096,
        accumulation=4,
        optimizer="paged-adamw8bit",
        checkpointing=True,
        lora_rank=32,
        attention="flash_attention_2",
    )
    path.write_text(FACTORY)
    recipe = read(path, batch=6)
    assert recipe is not None
    # Weights that are trained are in fp32; the option overrides the file.
    assert (recipe.task, recipe.precision, recipe.batch) == ("finetune", "mixed", 6)
    assert (recipe.optimizer, recipe.recomputes, recipe.reasons) == ("adamw-foreach", True, ())


def test_settings_that_are_not_modelled_are_refused_or_a_reason(config: Path) -> None:
    pytest.importorskip("yaml")
    path = config.with_name("train.yml")
    path.write_text(AXOLOTL + "deepspeed: zero3.json\n")
    with pytest.raises(BadInput, match="sets deepspeed"):
        read(path)
    path.write_text(AXOLOTL + "shrink_weights: true\n")
    recipe = read(path)
    assert recipe is not None and "shrink_weights" in recipe.reasons[0]
    path.write_text(AXOLOTL.replace("adapter: qlora", "adapter: llama-adapter"))
    with pytest.raises(BadInput, match="adapter: llama-adapter"):
        read(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (AXOLOTL + "val_set_size: 0.1\neval_batch_size: 16\n", "batches of 16"),
        (AXOLOTL + "eval_batch_size: 2\nval_set_size: 0.1\nevals_per_epoch: 4\n", ""),
        (FACTORY + "val_size: 0.1\neval_strategy: steps\n", "batches of 8"),  # unless the file sets them
        (FACTORY + "val_size: 0.1\nper_device_eval_batch_size: 1\n", ""),
        (FACTORY + "eval_strategy: 'no'\n", ""),
        (AXOLOTL + "sample_packing: true\n", ""),
        (AXOLOTL.replace("flash_attention: true", "sample_packing: true"), "packed without flash attention"),
    ],
)
def test_what_may_need_more_than_the_training_step_is_a_reason(config: Path, text: str, reason: str) -> None:
    pytest.importorskip("yaml")
    path = config.with_name("train.yml")
    path.write_text(text)
    recipe = read(path)
    assert recipe is not None and len(recipe.reasons) == bool(reason)
    assert reason in "".join(recipe.reasons)


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sequence_len: 4096", "sequence_len: .nan"),
        ("sequence_len: 4096", "sequence_len: 1e-300"),
        ("micro_batch_size: 2", "micro_batch_size: 1" + "0" * 400),
        ("micro_batch_size: 2", "micro_batch_size: -1"),
        ("lora_r: 32", "lora_r: [1]"),
        ("adapter: qlora", "adapter: [qlora]"),
        ("lora_target_linear: true", "lora_target_modules: 5"),
        ("datasets: []", "datasets: " + "[" * 5000 + "]" * 5000),
    ],
)
def test_settings_of_the_wrong_kind_are_refused(config: Path, old: str, new: str) -> None:
    pytest.importorskip("yaml")
    path = config.with_name("train.yml")
    path.write_text(AXOLOTL.replace(old, new))
    with pytest.raises(BadInput):
        read(path)


def test_a_model_is_predicted_and_planned_from_python_under_the_same_names(config: Path) -> None:
    pytest.importorskip("transformers")
    from pinchpoint import plan, predict

    options: dict[str, Any] = {"model": config, "task": "pretrain", "precision": "fp32"}
    script = config.with_name("train.py")
    forecast = predict(**options, batch=2, sequence=32, card="8GiB", script=script)
    assert forecast.target == f"{config} (pretrain)" and forecast.fits["8GiB"]
    assert "default=32" in script.read_text()
    planned = plan(**options, sequence=32, budget="8GiB", size=2)
    assert (planned.target, planned.axis, planned.size) == (forecast.target, "batch", 2)
    assert planned.peak_bytes == forecast.total_bytes
    with pytest.raises(BadInput, match="can only be used with --model"):
        predict("train.py", task="lora")


def test_what_a_file_leaves_unknown_makes_a_plan_unknown(config: Path, tmp_path: Path) -> None:
    from dataclasses import replace as change

    from tests.planning.test_plan import GIB, forecast

    from pinchpoint import plan

    class Fits:
        def predict(self, **_: Any) -> Any:
            return change(forecast(2 * GIB), fits={"h200": True})

    file = tmp_path / "axolotl.yml"
    file.write_text(f"base_model: {config}\nunknown_thing: 3\n")
    pytest.importorskip("yaml")
    planned = plan(model=file, budget="h200", size=1, forecaster=Fits())
    assert planned.size is None and "unknown_thing" in planned.reasons[0]


@pytest.mark.parametrize(
    ("fields", "says", "hint"),
    [
        ({"model_type": "lama"}, "no model of type 'lama'", "Write llama"),
        ({"model_type": "a brand new one"}, "no model of type", "pip install --upgrade transformers"),
        ({"model_type": "vit"}, "'vit' is not a language model", "Give a script"),
        ({"model_type": "llama", "is_encoder_decoder": True}, "no AutoModelForSeq2SeqLM", "Give a script"),
    ],
)
def test_a_model_that_transformers_cannot_build_is_refused_before_a_script_is_run(
    tmp_path: Path, fields: dict[str, Any], says: str, hint: str
) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | fields))
    with pytest.raises(BadInput, match=says) as error:
        read(path)
    assert error.value.hint is not None and hint in error.value.hint
    path.write_text(json.dumps(CONFIG | fields | {"auto_map": {"AutoConfig": "own.Config"}}))
    assert read(path) is not None  # its code is not in transformers


def test_a_type_is_not_refused_without_transformers(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config.write_text(json.dumps(CONFIG | {"model_type": "lama"}))
    assert read(config) is not None
