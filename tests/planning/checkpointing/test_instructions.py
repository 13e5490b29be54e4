"""Short names of modules, and code that switches recomputation on in a real model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pinchpoint.planning.checkpointing.instructions import groups_of, shorten, ways_to_switch_on
from pinchpoint.planning.checkpointing.module_choice import Candidate


def candidates(*names: str, is_layer: bool = False) -> list[Candidate]:
    return [Candidate(name, "Block", 100, 0.5, is_layer=is_layer) for name in names]


def wrapped(model: Any) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in model.named_modules() if "forward" in vars(module)]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["a.0", "a.1", "a.2", "a.5"], ["a.0-2,5"]),
        (["a.0.mlp", "a.1.mlp", "head"], ["a.0-1.mlp", "head"]),
        (["s.0.b.0", "s.0.b.1", "s.1.b.0", "s.1.b.1", "s.1.b.2"], ["s.0.b.0-1", "s.1.b.0-2"]),
        (["down.0.0", "down.1.0", "down.2.0"], ["down.0-2.0"]),
        (["conv1", "conv2"], ["conv1", "conv2"]),
    ],
)
def test_names_that_differ_in_a_number_are_one_range(names: list[str], short: list[str]) -> None:
    groups = shorten(names)
    assert list(groups) == short
    assert sorted(name for members in groups.values() for name in members) == sorted(names)


def test_a_group_adds_up_what_its_modules_free_and_cost() -> None:
    (row,) = groups_of(candidates("GPT.blocks.0", "GPT.blocks.1", "GPT.blocks.2"))
    assert row == {
        "modules": "blocks.0-2",
        "class": "Block",
        "keeps": "",
        "count": 3,
        "freed_bytes": 300,
        "recompute_s": 1.5,
    }


def test_the_code_recomputes_exactly_the_chosen_modules() -> None:
    torch = pytest.importorskip("torch", reason="the code is torch's")
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(4, 4)) for _ in range(6)))
    chosen = candidates("Sequential.0", "Sequential.1", "Sequential.2", "Sequential.5.0")
    (way,) = ways_to_switch_on(chosen, chosen, {"Sequential": ["Sequential", "Module"]})
    assert "Sequential" in way["title"]
    exec(way["code"], {"model": model})
    assert [name for name, _ in wrapped(model)] == ["0", "1", "2", "5.0"]
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_code_keeps_the_results_of_products_where_that_was_chosen() -> None:
    torch = pytest.importorskip("torch", reason="the code is torch's")
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()) for _ in range(4))
    )
    plain = candidates("Sequential.0")
    kept = [replace(one, keeps_products=True) for one in candidates("Sequential.1", "Sequential.2")]
    (way,) = ways_to_switch_on([*plain, *kept], [*plain, *kept], {"Sequential": ["Sequential", "Module"]})
    exec(way["code"], {"model": model})
    policies = {name: "context_fn" in module.forward.keywords for name, module in wrapped(model)}
    assert policies == {"0": False, "1": True, "2": True}
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    rows = groups_of([*plain, *kept])
    assert [(row["modules"], row["keeps"]) for row in rows] == [("0", ""), ("1-2", "products")]


def test_transformers_enables_it_by_itself_if_all_layers_are_chosen() -> None:
    layers = candidates("GPT2.h.0", "GPT2.h.1", is_layer=True)
    every = [*layers, *candidates("GPT2.h.0.mlp", "GPT2.h.1.mlp")]
    roots = {"GPT2": ["GPT2", "PreTrainedModel", "Module"]}
    first, second = ways_to_switch_on(layers, every, roots)
    assert first["code"].startswith("model.gradient_checkpointing_enable(")
    assert "model.config.use_cache = False" in second["code"]
    (some,) = ways_to_switch_on(layers[:1], every, roots)
    assert "gradient_checkpointing_enable" not in some["code"]


def test_a_sharded_model_has_torchs_own_wrapper() -> None:
    chosen = candidates("DistributedDataParallel.module.h.0")
    roots = {"DistributedDataParallel": ["DistributedDataParallel", "Module"]}
    code = ways_to_switch_on(chosen, chosen, roots)[1]["code"]
    assert "apply_activation_checkpointing(model, check_fn=" in code and '{"h.0"}' in code
