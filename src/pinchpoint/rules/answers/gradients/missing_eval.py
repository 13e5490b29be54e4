"""A model is evaluated in training mode.

Without `model.eval()`, dropout is active and batch norm uses and updates the statistics of each batch: the
score is noisy, and the evaluation changes the model. Reported where a file with dropout or batch norm, or
without the model itself, evaluates over batches and never calls `eval()`.

Bad:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))

    def train(batches, optimizer):
        for batch in batches:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()

    def evaluate(batches):
        with torch.no_grad():
            return torch.stack([model(batch).mean() for batch in batches]).mean()

Good:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))

    def train(batches, optimizer):
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()

    def evaluate(batches):
        model.eval()
        with torch.no_grad():
            return torch.stack([model(batch).mean() for batch in batches]).mean()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source
from pinchpoint.rules.engine.values import derives_from_module, is_model_call

_EVALUATION = re.compile(r"^_?(eval|evaluate|validate|valid|validation|test|predict)(_|$)")
_CHANGES_IN_TRAINING = re.compile(r"\b(Dropout|BatchNorm|InstanceNorm)|from_pretrained\(|models\.resnet")


def check(source: Source) -> Iterator[Match]:
    text = source.text
    if ".eval(" in text or ".train(" in text.replace(".train()", "") or "LightningModule" in text:
        return
    own = (
        any(derives_from_module(source, node) for node in source.all(ast.ClassDef)) or "nn.Sequential" in text
    )
    # Without its own model, a file must train it: else the caller may have chosen the mode.
    if not (_CHANGES_IN_TRAINING.search(text) if own else ".backward(" in text):
        return
    yield from _in_script(source)
    for function in source.functions:
        if not _EVALUATION.match(function.name.lower()):
            continue
        if patterns.method_calls(source, function, "backward", "step"):
            continue
        calls = [
            node
            for node in source.walk(function)
            if isinstance(node, ast.Call)
            and is_model_call(source, node)
            and any(patterns.over_loader(source, loop) for loop in source.loops(node))
        ]
        if calls:
            yield Match(calls[0], {"name": f"`{function.name}`"})


def _in_script(source: Source) -> Iterator[Match]:
    """A loop under no_grad outside functions, in a script that trains the model outside functions too."""
    if not any(
        source.function(loop) is None and patterns.takes_steps(source, loop) for loop in source.all(ast.For)
    ):
        return
    for call in source.calls:
        if source.function(call) is not None or not is_model_call(source, call):
            continue
        looped = any(patterns.over_loader(source, loop) for loop in source.loops(call))
        if looped and patterns.without_gradient(source, call):
            yield Match(call, {"name": "The script"})
            return


RULE = Rule(
    number=506,
    name="missing-eval",
    message="{name} evaluates the model in training mode: dropout and batch norm are active.",
    hint="Call model.eval() first, and model.train() before training goes on.",
    check=check,
)
