"""An evaluation runs the model with gradients.

After `model.eval()`, every operation still stores what a backward pass would need, which multiplies the
memory. Use `torch.inference_mode()` or `torch.no_grad()`.

Bad:

    import torch

    def evaluate(model, batches):
        model.eval()
        correct = 0
        for inputs, targets in batches:
            correct = correct + (model(inputs).argmax(1) == targets).sum()
        return correct

Good:

    import torch

    @torch.inference_mode()
    def evaluate(model, batches):
        model.eval()
        correct = 0
        for inputs, targets in batches:
            correct = correct + (model(inputs).argmax(1) == targets).sum()
        return correct
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Function, Source, method, receiver
from pinchpoint.rules.engine.values import is_model_call, is_module

_NEEDS_GRADIENTS = ("backward", "requires_grad_", "retain_grad")


def check(source: Source) -> Iterator[Match]:
    yield from _by_name(source)
    for call in source.calls:
        if method(call) != "eval" or call.args or not isinstance(source.parents[call], ast.Expr):
            continue
        model = receiver(call)
        if isinstance(model, ast.Name | ast.Attribute) and is_module(source, model):
            scope = source.function(call) or source.tree
            use = _use_with_gradient(source, scope, ast.unparse(model), call)
            if use is not None and not _needs_gradients(source, scope, after=call):
                yield Match(use, {"name": ast.unparse(model)})


def _by_name(source: Source) -> Iterator[Match]:
    """Functions called `evaluate` and the like that go over a loader with gradients, without `eval()` too."""
    for function in source.functions:
        if not patterns.is_evaluation(function) or patterns.method_calls(source, function, "eval", "step"):
            continue
        for node in source.walk(function):
            loops = source.statement_loops(node) if is_model_call(source, node) else []
            if not isinstance(node, ast.Call) or source.function(node) is not function:
                continue
            if not any(patterns.over_loader(source, loop) for loop in loops):
                continue
            if not patterns.without_gradient(source, node) and not _needs_gradients(source, function):
                yield Match(node, {"name": ast.unparse(node.func)})
                break


def _use_with_gradient(source: Source, scope: ast.AST, model: str, after: ast.Call) -> ast.Call | None:
    """A call of the model in a loop after `eval()`, before `train()`, with gradients enabled."""
    end = _end_of_evaluation(source, scope, after)
    for node in source.walk(scope):
        if (
            isinstance(node, ast.Call)
            and after.lineno < node.lineno < end
            and ast.unparse(node.func) == model
        ):
            looped = source.statement_loops(node) and source.statement_loops(node) != source.statement_loops(
                after
            )
            here = source.function(node) is source.function(after)
            if looped and here and not patterns.without_gradient(source, node):
                return node
    return None


def _end_of_evaluation(source: Source, scope: ast.AST, after: ast.Call) -> int:
    """The line of the next `train()` after `eval()`."""
    lines = (call.lineno for call in patterns.method_calls(source, scope, "train"))
    return min((line for line in lines if line > after.lineno), default=1 << 30)


def _needs_gradients(source: Source, scope: Function | ast.AST, *, after: ast.Call | None = None) -> bool:
    """Whether anything differentiates, or switches gradients off for all that follows.

    after: only between this call of `eval()` and the next of `train()`
    """
    first, end = (0, 1 << 30) if after is None else (after.lineno, _end_of_evaluation(source, scope, after))
    for node in source.walk(scope):
        if isinstance(node, ast.Call):
            name = source.name(node.func)
            if name.endswith("set_grad_enabled"):
                return True
            if not first <= node.lineno < end:
                continue
            if method(node) in _NEEDS_GRADIENTS or name.endswith("autograd.grad"):
                return True
            if name.startswith(("torch.func.", "torch.autograd.", "torch.onnx", "torch.jit", "torch.fx")):
                return True
    return any(name.endswith(("no_grad", "inference_mode")) for name in _callers(source, scope))


def _callers(source: Source, scope: ast.AST) -> Iterator[str]:
    """The contexts and decorators in which the file calls the function."""
    if isinstance(scope, ast.FunctionDef):
        for call in source.calls:
            if source.name(call.func).rpartition(".")[2] == scope.name:
                yield from (source.called(c) or source.name(c) for c in patterns.contexts(source, call))


RULE = Rule(
    number=305,
    name="missing-no-grad",
    message="`{name}` is evaluated with gradients, which stores activations for a backward pass.",
    hint="Run the evaluation under torch.inference_mode() or torch.no_grad().",
    check=check,
)
