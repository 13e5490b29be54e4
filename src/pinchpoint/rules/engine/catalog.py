"""The rules, found by walking the folders of the families, and the choice among them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module

from pinchpoint.core.errors import BadInput
from pinchpoint.rules.engine.rule import FAMILIES, Rule

_PACKAGE = "pinchpoint.rules"


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by number."""
    rules = [
        module.RULE
        for family in FAMILIES.values()
        for name in _modules(f"{_PACKAGE}.{family}")
        if hasattr(module := import_module(name), "RULE")
    ]
    return tuple(sorted(rules, key=lambda rule: rule.number))


def _modules(package: str) -> list[str]:
    names = []
    for info in pkgutil.iter_modules(import_module(package).__path__):
        name = f"{package}.{info.name}"
        names += _modules(name) if info.ispkg else [name]
    return names


@cache
def _by_word() -> dict[str, Rule]:
    return {word: rule for rule in all_rules() for word in (rule.name, rule.code.lower())}


def find_rule(word: str) -> Rule:
    """The rule with this number (PP101) or name (sync-in-loop)."""
    rule = _by_word().get(word.lower())
    if rule is None:
        raise _unknown(word)
    return rule


def choose_rules(select: Sequence[str], ignore: Sequence[str]) -> tuple[Rule, ...]:
    """The rules that `select` names (all if empty), without those that `ignore` names."""
    chosen = _matching(select) if select else set(all_rules())
    left_out = _matching(ignore)
    return tuple(rule for rule in all_rules() if rule in chosen and rule not in left_out)


def _matching(words: Iterable[str]) -> set[Rule]:
    """The rules of each word: PP101, sync-in-loop, PP1 or PP1xx for a family, or the family's name."""
    rules: set[Rule] = set()
    for word in words:
        prefix = word.upper().rstrip("X")
        matches = {
            rule
            for rule in all_rules()
            if word.lower() in (rule.name, rule.family)
            or (prefix.startswith("PP") and rule.code.startswith(prefix))
        }
        if not matches:
            raise _unknown(word)
        rules |= matches
    return rules


def _unknown(word: str) -> BadInput:
    names = [text for rule in all_rules() for text in (rule.name, rule.code)] + list(FAMILIES.values())
    near = get_close_matches(word, names, n=1) or get_close_matches(word.upper(), names, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return BadInput(
        f"There is no rule {word!r}.",
        hint=f"{hint}Use a number such as PP101 or a name; see pinchpoint list rules.",
    )
