"""Every rule finds its bad example, leaves its good one alone, and fixes the one to the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.rules.engine.catalog import all_rules
from pinchpoint.rules.engine.documentation import page
from pinchpoint.rules.engine.fixing import fix_text
from pinchpoint.rules.engine.reading import File, parse
from pinchpoint.rules.engine.rule import Rule
from pinchpoint.rules.scan import find_in, matches_in

RULES = {rule.name: rule for rule in all_rules()}


def file(text: str) -> File:
    return File("example.py", text, parse(text))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_finds_its_bad_example_and_no_other_rule_does(name: str) -> None:
    bad, _ = RULES[name].examples()
    assert {finding.name for finding in find_in(file(bad), all_rules())} == {name}


@pytest.mark.parametrize("name", RULES)
def test_no_rule_finds_anything_in_a_good_example(name: str) -> None:
    _, good = RULES[name].examples()
    assert find_in(file(good), all_rules()) == []


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.fix])
def test_fixing_the_bad_example_gives_the_good_one(name: str) -> None:
    bad, good = RULES[name].examples()
    fixed, count = fix_text(file(bad), [RULES[name]], matches_in, unsafe=True)
    assert fixed == good
    assert count >= 1
    assert fix_text(file(fixed), [RULES[name]], matches_in, unsafe=True) == (good, 0)


UNSAFE = {
    "a caller may differentiate the outputs": """
import torch
def outputs_of(model, loader):
    outputs = []
    for x in loader:
        output = model(x)
        outputs.append(output)
    return torch.cat(outputs)
""",
    "a graph that is kept for another pass": """
import torch
def train(model, loader, opt):
    losses = []
    for x in loader:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward(retain_graph=True)
        opt.step()
        losses.append(loss)
    return losses
""",
    "the copy of a leaf is no leaf": """
import torch
def noise(n, device):
    return torch.zeros(n, requires_grad=True).to(device)
""",
    "an argument that only the copy takes": """
import torch
def noise(n):
    return torch.zeros(n).cuda(non_blocking=True)
""",
}


@pytest.mark.parametrize("what", UNSAFE)
def test_code_that_would_compute_something_else_is_not_fixed(what: str) -> None:
    assert fix_text(file(UNSAFE[what]), all_rules(), matches_in, unsafe=False) == (UNSAFE[what], 0)
    assert find_in(file(UNSAFE[what]), all_rules())


def test_numbers_and_names_are_unique_and_follow_the_families() -> None:
    rules = all_rules()
    assert len({rule.number for rule in rules}) == len({rule.name for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.check.__module__.split(".")[2] == rule.family
        assert rule.check.__module__.rpartition(".")[2] == rule.name.replace("-", "_")


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.name)
def test_texts_of_a_rule_are_sentences(rule: Rule) -> None:
    assert rule.message.endswith(".") and rule.hint.endswith(".")
    assert rule.title.endswith(".")
    assert rule.text()


def test_the_page_of_rules_is_made_from_the_docstrings() -> None:
    written = (Path(__file__).parents[2] / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
    assert written == page(), "run python -m pinchpoint.rules.engine.documentation > docs/reference/rules.md"
