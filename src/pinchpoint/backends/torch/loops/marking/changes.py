"""`Changes`: what may change in a file while a loop runs, and whether a side of a condition may need memory.

All of this is read from one file, without knowing types: it is a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pinchpoint.backends.torch.loops.marking.loop_source import evaluated_conditions
from pinchpoint.backends.torch.loops.marking.syntax import RATE, shows
from pinchpoint.backends.torch.loops.remainder import is_harmless

ALLOCATES, SKIPS = 0, 1  # what the side does that was not run: it may allocate, or only leaves out something
_EXITS = (ast.Break, ast.Continue, ast.Return)
_IDLE = (ast.Pass, ast.Break, ast.Continue, ast.Raise, ast.Assert, ast.Global, ast.Nonlocal, ast.Import)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_NAMES = {
    "growing": "append extend add insert pop popleft appendleft put push clear remove update store",
    # Functions and methods whose result changes only with their arguments, or not within a run.
    "stable": "issubclass getattr len int float bool str min max abs round sum any all ndimension stride "
    "startswith endswith lower upper strip split get keys values items exists isfile isdir is_file is_dir "
    "is_available is_initialized is_floating_point is_complex is_tensor is_grad_enabled device_count "
    "get_rank get_world_size type zip range enumerate sorted list tuple set dict is_bf16_supported "
    "is_main_process isinf isnan isfinite sqrt floor ceil is_contiguous is_compiling",
    "fixed": "isinstance hasattr callable size dim numel",  # that do not change within a run
    "attributes": "shape ndim dtype device training is_cuda requires_grad grad_fn grad",  # nor do these
    "changed": "last_epoch param_groups num_bad_epochs _step_count",  # by schedulers and optimizers
    "freeing": "detach detach_ zero_grad empty_cache clear requires_grad_ no_grad",
}
_GROWING, _STABLE, _FIXED, _FIXED_ATTRIBUTES, _CHANGED_ATTRIBUTES, _FREEING = (
    frozenset(text.split()) for text in _NAMES.values()
)


@dataclass
class Scope:
    """The names of a function, or of the file."""

    parent: Scope | None
    name: str = ""
    arguments: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)  # by `global` and `nonlocal`
    # Name -> its values, each with whether a loop sets it and whether it is changed in place.
    values: dict[str, list[tuple[ast.expr, bool, bool]]] = field(default_factory=dict)
    changing: set[str] = field(default_factory=set)
    growing: set[str] = field(default_factory=set)
    varying: set[str] = field(default_factory=set)  # arguments that change from call to call

    def of(self, name: str) -> Scope | None:
        """The scope that a name belongs to."""
        if name not in self.shared and (name in self.values or name in self.arguments or self.parent is None):
            return self
        return None if self.parent is None else self.parent.of(name)


class Changes:
    """Finds what changes in a file."""

    def __init__(self) -> None:
        self.scopes: dict[int, Scope] = {}  # id of a function or the file -> its names
        self.attributes: set[str] = set()  # that are changed in a loop or in a function
        self.growing: set[str] = set()  # attributes that are containers
        self.useful: set[str] = set()  # names and attributes that are used outside conditions
        self.loaded: set[str] = set()
        self._functions: dict[str, list[Any]] = {}  # that the file defines, and methods
        self._calls: list[tuple[ast.Call, Scope, bool]] = []  # and whether a loop repeats each
        self._called: list[str] = []  # of these, those whose calls are looked at now
        self.evaluated: set[int] = set()  # conditions that are evaluated for turns that are not run

    def read(self, tree: ast.Module) -> None:
        scope = self.scopes[id(tree)] = Scope(None)
        self._body(tree.body, scope, is_in_loop=False)
        self._uses(tree, is_shown=False)

    def _body(self, body: Iterable[ast.AST], scope: Scope, *, is_in_loop: bool) -> None:
        for node in body:
            if isinstance(node, (*_FUNCTIONS, ast.Lambda)):
                inner = self.scopes[id(node)] = Scope(scope, getattr(node, "name", "<lambda>"))
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                inner.arguments = {one.arg for one in every}
                self._functions.setdefault(inner.name, []).append(node)
                inside = node.body if isinstance(node.body, list) else [node.body]
                self._body(inside, inner, is_in_loop=False)
                continue
            if isinstance(node, ast.For):
                self.evaluated |= evaluated_conditions(node)
            self._changes(node, scope, is_in_loop=is_in_loop)
            if isinstance(node, ast.Call):
                self._calls.append((node, scope, is_in_loop))
            is_inside = is_in_loop or isinstance(node, _LOOPS)
            self._body(ast.iter_child_nodes(node), scope, is_in_loop=is_inside)

    def _changes(self, node: Any, scope: Scope, *, is_in_loop: bool) -> None:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            scope.shared |= set(node.names)
        is_later = is_in_loop or (scope.parent is not None and scope.name != "__init__")
        function = getattr(node, "func", None)
        if isinstance(function, ast.Attribute) and function.attr in _GROWING and is_later:
            self._grows(function.value, scope)
        if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) or node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for part, value in _pairs(target, node.value):
                if isinstance(part, ast.Name):
                    is_in_place = isinstance(node, ast.AugAssign) or part.id in names_in(value)
                    owner = scope.of(part.id) if part.id in scope.shared else scope
                    owner = owner or scope
                    owner.values.setdefault(part.id, []).append((value, is_in_loop, is_in_place))
                    if owner is not scope:
                        owner.changing.add(part.id)
                elif isinstance(part, ast.Attribute) and is_later:
                    self.attributes.add(part.attr)
                elif isinstance(part, ast.Subscript) and is_later:
                    self._grows(part.value, scope)

    def _grows(self, thing: ast.AST, scope: Scope) -> None:
        if isinstance(thing, ast.Name):
            (scope.of(thing.id) or scope).growing.add(thing.id)
        elif isinstance(thing, ast.Attribute):
            self.growing.add(thing.attr)

    def _uses(self, node: ast.AST, *, is_shown: bool) -> None:
        """Find names that are used in other ways than in conditions and to be shown."""
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            name = node.id if isinstance(node, ast.Name) else node.attr
            self.loaded.add(name)
            if not is_shown:
                self.useful.add(name)
        is_shown = is_shown or isinstance(node, (ast.JoinedStr, ast.Assert))
        is_shown = is_shown or (isinstance(node, ast.Call) and shows(node.func))
        for name, part in ast.iter_fields(node):
            is_test = name == "test" and isinstance(node, (ast.If, ast.IfExp, ast.While))
            for one in part if isinstance(part, list) else [part]:
                if isinstance(one, ast.AST):
                    self._uses(one, is_shown=is_shown or is_test)

    def settle(self) -> None:
        """Follow changes through assignments."""
        while True:
            before = sum(len(scope.changing | scope.varying) for scope in self.scopes.values())
            for scope in self.scopes.values():
                for name, values in scope.values.items():
                    if name not in scope.changing and self._is_changed(values, scope):
                        scope.changing.add(name)
            for call, scope, is_in_loop in self._calls:
                self._give_arguments(call, scope, is_in_loop=is_in_loop)
            if before == sum(len(scope.changing | scope.varying) for scope in self.scopes.values()):
                return

    def _give_arguments(self, call: ast.Call, scope: Scope, *, is_in_loop: bool) -> None:
        """Find arguments of the file's functions that change from turn to turn of a loop that calls them."""
        for function in self._functions.get(getattr(call.func, "id", getattr(call.func, "attr", "")), ()):
            names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            names = names[1:] if names[:1] == ["self"] else names
            arguments = [
                *zip(names, call.args, strict=False),
                *((one.arg, one.value) for one in call.keywords),
            ]
            for name, value in arguments:
                changes = is_in_loop and self.changes(value, scope, is_in_loop=True)
                if name and (changes or scope.varying & names_in(value)):
                    self.scopes[id(function)].varying.add(name)

    def _is_changed(self, values: list[tuple[ast.expr, bool, bool]], scope: Scope) -> bool:
        in_loop = [(value, in_place) for value, is_in_loop, in_place in values if is_in_loop]
        if any(in_place for _, in_place in in_loop) or 0 < len(in_loop) < len(values):
            return True
        counted = [value for value, _ in in_loop] if scope.parent is None else [value for value, *_ in values]
        return any(self.changes(value, scope) for value in counted)

    def changes(self, node: ast.AST, scope: Scope, *, is_in_loop: bool = False) -> bool:
        """Whether the value of an expression may change. is_in_loop: whether a loop of its function asks."""
        if isinstance(node, ast.Name):
            owner = scope.of(node.id)
            if owner is not None and node.id in owner.varying:
                return True
            if owner is None or node.id not in owner.changing:
                return owner is not None and node.id in owner.growing and node.id in owner.values
            values = owner.values.get(node.id, [])
            # What is set before the loop that asks is the same in all its turns.
            return not (
                is_in_loop and owner is scope and values and not any(inside for _, inside, _ in values)
            )
        if isinstance(node, ast.Attribute):
            if node.attr in _FIXED_ATTRIBUTES:
                return False
            if node.attr in self.attributes | self.growing | _CHANGED_ATTRIBUTES:
                return True
        if isinstance(node, ast.Compare) and any(isinstance(one, (ast.Is, ast.IsNot)) for one in node.ops):
            return False
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in _FIXED:
                return False
            if name == "len" and len(node.args) == 1:
                return self._has_grown(node.args[0], scope)
            if name not in _STABLE:
                return True
            parts = [*node.args, *(one.value for one in node.keywords)]
            parts += [node.func.value] if isinstance(node.func, ast.Attribute) else []
            return any(self.changes(part, scope, is_in_loop=is_in_loop) for part in parts)
        return any(
            self.changes(part, scope, is_in_loop=is_in_loop)
            for part in ast.iter_child_nodes(node)
            if isinstance(part, (ast.expr, ast.keyword))
        )

    def _has_grown(self, thing: ast.AST, scope: Scope) -> bool:
        if isinstance(thing, ast.Attribute):
            return thing.attr in self.growing
        owner = scope.of(thing.id) if isinstance(thing, ast.Name) else None
        return owner is not None and isinstance(thing, ast.Name) and thing.id in owner.growing

    # --- what the sides of a condition do

    def is_harmless(self, statements: Iterable[ast.AST]) -> bool:
        """Whether statements need no memory, and change nothing but what conditions read."""
        return all(map(self._is_harmless, statements))

    def _is_harmless(self, node: Any) -> bool:
        if isinstance(node, (*_IDLE, *_FUNCTIONS, ast.ClassDef)):
            return True
        if isinstance(node, ast.Return):
            return node.value is None or isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Expr):
            return self._has_harmless_calls(node.value)
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in _parts(target)]
            return all(map(self._is_unused, parts)) and (
                node.value is None or self._has_harmless_calls(node.value)
            )
        if isinstance(node, (ast.If, *_LOOPS, ast.With)):
            heads = [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.stmt)]
            blocks = [*node.body, *getattr(node, "orelse", ())]
            return all(map(self._has_harmless_calls, heads)) and self.is_harmless(blocks)
        return False

    def _has_harmless_calls(self, expression: ast.AST) -> bool:
        return all(
            self._is_harmless_call(node) for node in ast.walk(expression) if isinstance(node, ast.Call)
        )

    def _is_harmless_call(self, call: ast.Call) -> bool:
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        functions = self._functions.get(name)
        if functions is None or name in self._called:
            return functions is not None or is_harmless(call)
        self._called.append(name)
        statements = [
            one for function in functions for one in function.body if not isinstance(one, ast.Return)
        ]
        results = [node for one in functions for node in ast.walk(one) if isinstance(node, ast.Return)]
        result = self.is_harmless(statements) and all(map(self._has_harmless_calls, results))
        self._called.pop()
        return result

    def _is_unused(self, target: ast.AST) -> bool:
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            return RATE.search(str(target.slice.value)) is not None
        if isinstance(target, ast.Name):
            return target.id not in self.useful
        if isinstance(target, ast.Attribute):
            is_own = isinstance(target.value, ast.Name) and target.value.id == "self"
            return target.attr not in self.useful and (is_own or target.attr in self.loaded)
        return False

    def rank(self, run: list[Any], other: list[Any]) -> int | None:
        """What the side of a condition does that was not run; None if it is not worth a turn."""
        if not self.is_harmless(other) or (run and isinstance(run[-1], _EXITS)):
            return ALLOCATES
        if other and isinstance(other[-1], (*_EXITS, ast.Raise)):
            return None
        for node in (part for statement in run for part in ast.walk(statement)):
            if isinstance(node, ast.Delete) or (
                isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _FREEING
            ):
                return SKIPS
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if not all(self._is_unused(part) for target in targets for part in _parts(target)):
                    return SKIPS
        return None


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        for at, part in enumerate(target.elts):
            is_paired = len(values) == len(target.elts)
            yield from _pairs(part, values[at] if is_paired else value)
    else:
        yield (target.value if isinstance(target, ast.Starred) else target), value


def _parts(target: ast.expr) -> list[ast.expr]:
    return [part for part, _ in _pairs(target, target)]


def names_in(expression: ast.AST) -> set[str]:
    nodes = list(ast.walk(expression))
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - {"self"}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
