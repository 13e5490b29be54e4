"""Suggestions have the lines of their statements and their own fix as a diff."""

from __future__ import annotations

from pathlib import Path

from pinchpoint.rules.engine.catalog import all_rules
from pinchpoint.rules.suggestions import Suggestion, suggest

CODE = """import gc
import torch

def train(model, loader, optimizer, device):
    total = 0.0
    for x in loader:
        loss = model(x.to(device)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss
        print(
            "loss",
            loss.item(),
        )
        gc.collect()
    return total
"""


def of_code(folder: Path, code: str) -> dict[str, Suggestion]:
    path = folder / "train.py"
    path.write_text(code)
    return {each.finding.name: each for each in suggest([path])[0]}


def test_a_statement_over_several_lines_has_all_of_them(tmp_path: Path) -> None:
    each = of_code(tmp_path, CODE)["sync-in-loop"]
    assert (each.finding.line, each.first_line, each.last_line) == (14, 12, 15)
    assert each.diff == ""


def test_a_finding_in_the_head_of_a_block_has_the_lines_of_the_head(tmp_path: Path) -> None:
    code = CODE.replace("        gc.collect()\n", "        if loss < 1:\n            break\n")
    each = of_code(tmp_path, code)["branch-on-tensor"]
    assert (each.first_line, each.last_line) == (16, 16)


def test_a_finding_about_a_loop_has_the_lines_of_the_loop(tmp_path: Path) -> None:
    code = """import torch

def means(features: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(400, 3, device=features.device)
    for cell in range(400):
        inside = cells == cell
        out[cell] = features[inside].mean(0)
    return out
"""
    each = of_code(tmp_path, code)["loop-over-samples"]
    assert (each.first_line, each.last_line) == (5, 7)


def test_each_fix_is_a_diff_of_its_own_and_says_whether_it_is_safe(tmp_path: Path) -> None:
    suggestions = of_code(tmp_path, CODE)
    kept, collect = suggestions["graph-kept"], suggestions["gc-in-loop"]
    assert [line for line in kept.diff.splitlines()[2:] if line[0] in "+-"] == [
        "-        total += loss",
        "+        total += loss.detach()",
    ]
    assert [line for line in collect.diff.splitlines()[2:] if line[0] in "+-"] == ["-        gc.collect()"]
    assert (kept.is_safe, collect.is_safe) == (True, False)


def test_every_rule_with_a_fix_writes_it_as_a_diff(tmp_path: Path) -> None:
    without = []
    for rule in all_rules():
        if rule.fix is not None:
            each = of_code(tmp_path, rule.examples()[0]).get(rule.name)
            without += [] if each is not None and "+++ b/" in each.diff else [rule.name]
    assert without == []


def test_a_file_that_is_not_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("import torch\ndef :\n")
    suggestions, unreadable = suggest([tmp_path / "odd.py"])
    assert suggestions == []
    assert "not valid Python" in unreadable[0].reason
