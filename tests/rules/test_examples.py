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
    written = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
    assert written == page(), "run python -m pinchpoint.rules.engine.documentation > docs/rules.md"
