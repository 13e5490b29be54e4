"""A parsed file as rules see it: nodes by type, parents, loops, scopes, and resolved names.

The tree is built by Python's own parser, which is several times faster than LibCST and gives exact positions;
LibCST parses only the files that are rewritten. The tree is walked once, when the source is created.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
Loop = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Node = TypeVar("Node", bound=ast.AST)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LOOPS = (ast.For, ast.AsyncFor, ast.While, *COMPREHENSIONS)
_SHARED = frozenset(
    kind
    for base in (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
    for kind in base.__subclasses__()
)

# Names that packages are usually imported under; used where a file imports from a module of its own.
_SAME = {
    "torch.cuda.amp.autocast_mode.autocast": "torch.cuda.amp.autocast",
    "torch.cuda.amp.grad_scaler.GradScaler": "torch.cuda.amp.GradScaler",
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.dataset.IterableDataset": "torch.utils.data.IterableDataset",
    "torch.utils.data.dataset.Dataset": "torch.utils.data.Dataset",
    "torch.autograd.no_grad": "torch.no_grad",
    "torch.autograd.grad_mode.no_grad": "torch.no_grad",
    "torch.autograd.inference_mode": "torch.inference_mode",
    "torch.functional.F": "torch.nn.functional",
}


class Source:
    """One file, or the code cells of a notebook joined to one text."""

    def __init__(self, file: str, text: str, tree: ast.Module) -> None:
        self.file = file
        self.text = text
        self.lines = re.split(r"\r\n|\r|\n", text)  # as Python counts lines; form feeds end none
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self._all: list[ast.AST] = []  # in the order of the text, each node before what it contains
        self._places: dict[ast.AST, int] = {}
        self._ends: list[int] = []  # where the nodes inside the node at the same place end
        self._nodes: dict[type, list[ast.AST]] = {}
        self._names: dict[ast.AST, str] = {}
        self._visit()
        self.calls: list[ast.Call] = self.all(ast.Call)
        self.functions: list[Function] = self.all(*FUNCTIONS)
        self.function_names = {function.name: function for function in reversed(self.functions)}
        self.class_names = {node.name: node for node in self.all(ast.ClassDef)}
        self.imports = self._imports()
        self.stores = self._stores()
        self.memo: dict[object, str] = {}  # kinds of values, kept by `values`
        self.facts: dict[object, bool] = {}  # what `patterns` found out about loops

    # The tree.

    def _visit(self) -> None:
        """Visit every node once, in the order of the text."""
        waiting: list[ast.AST] = [self.tree]
        everything, parents, places = self._all, self.parents, self._places
        while waiting:
            node = waiting.pop()
            places[node] = len(everything)
            everything.append(node)
            children = []
            for field in node._fields:
                value = getattr(node, field, None)
                if isinstance(value, list):
                    children += [item for item in value if isinstance(item, ast.AST)]
                elif isinstance(value, ast.AST):
                    children.append(value)
            # Contexts and operators are objects that many nodes share: they are no nodes of their own here.
            children = [child for child in children if type(child) not in _SHARED]
            for child in children:
                parents[child] = node
            children.reverse()
            waiting += children
        ends = list(range(1, len(everything) + 1))
        for place in range(len(everything) - 1, 0, -1):
            parent = places[parents[everything[place]]]
            ends[parent] = max(ends[parent], ends[place])
        self._ends = ends
        for node in everything:
            self._nodes.setdefault(type(node), []).append(node)

    def walk(self, node: ast.AST) -> list[ast.AST]:
        """A node and all nodes inside it, in the order of the text."""
        place = self._places[node]
        return self._all[place : self._ends[place]]

    def all(self, *kinds: type[Node]) -> list[Node]:
        """Every node of these types, in the order of the text within each type."""
        return [node for kind in kinds for node in self._nodes.get(kind, ())]  # pyright: ignore[reportReturnType]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def inside(self, node: ast.AST, container: ast.AST) -> bool:
        place = self._places[container]
        return place <= self._places[node] < self._ends[place]

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that contains an expression."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def scope(self, node: ast.AST) -> Scope:
        """The function, class or module whose body contains the node; comprehensions count as their
        parent."""
        child = node
        for parent in self.ancestors(node):
            if isinstance(parent, ast.Lambda) and child is parent.body:
                return parent
            if isinstance(parent, (*FUNCTIONS, ast.ClassDef)) and _in_body(parent, child):
                return parent
            child = parent
        return self.tree

    def function(self, node: ast.AST) -> Function | None:
        """The function whose body contains the node; None at the level of the module or class."""
        scope = self.scope(node)
        while isinstance(scope, ast.Lambda):
            scope = self.scope(scope)
        return scope if isinstance(scope, FUNCTIONS) else None

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        return next((parent for parent in self.ancestors(node) if isinstance(parent, ast.ClassDef)), None)

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops and comprehensions that run the node again and again, innermost first.

        What a loop evaluates once (the iterable of `for`, `else`) is not inside it. A function inside a loop
        ends the search: its body runs when it is called.
        """
        loops: list[Loop] = []
        child = node
        for parent in self.ancestors(node):
            if isinstance(parent, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
                break
            if isinstance(parent, ast.For | ast.AsyncFor):
                if child is not parent.iter and child not in parent.orelse:
                    loops.append(parent)
            elif isinstance(parent, ast.While):
                if child not in parent.orelse:
                    loops.append(parent)
            elif isinstance(parent, COMPREHENSIONS):
                first = parent.generators[0]
                if child is not first or not self.inside(node, first.iter):
                    loops.append(parent)
            child = parent
        return loops

    def statement_loops(self, node: ast.AST) -> list[ast.For | ast.AsyncFor | ast.While]:
        return [loop for loop in self.loops(node) if isinstance(loop, ast.For | ast.AsyncFor | ast.While)]

    def characters(self, line: int, offset: int) -> int:
        """The characters before a byte offset in a line; positions of ast count bytes."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return offset if text.isascii() else len(text.encode("utf-8")[:offset].decode("utf-8", "replace"))

    # Names.

    def _imports(self) -> dict[str, str]:
        """Local names of imported things, and what they are."""
        names: dict[str, str] = {}
        for node in self.all(ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = alias.name
                else:
                    first = alias.name.partition(".")[0]
                    names.setdefault(first, first)
        for node in self.all(ast.ImportFrom):
            if node.level or not node.module:
                continue
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names[alias.asname or alias.name] = _SAME.get(full, full)
        return names

    def uses(self, *packages: str) -> bool:
        """Whether the file imports one of these packages."""
        return any(full.partition(".")[0] in packages for full in self.imports.values())

    def name(self, node: ast.AST | None) -> str:
        """The dotted name of an expression with imports resolved: `torch.nn.Linear`; empty for others."""
        if node is None:
            return ""
        known = self._names.get(node)
        if known is None:
            known = self._names[node] = self._resolve(node)
        return known

    def _resolve(self, node: ast.AST) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        first = self.imports.get(node.id, node.id)
        full = ".".join([first, *reversed(parts)])
        return _SAME.get(full, full)

    def called(self, node: ast.AST | None) -> str:
        """The dotted name of what a call calls; empty if the node is no call."""
        return self.name(node.func) if isinstance(node, ast.Call) else ""

    # Scopes.

    def _stores(self) -> dict[tuple[ast.AST, str], list[ast.Name]]:
        """Where each scope binds a name by assignment, a loop, or `with`, in the order of the text."""
        stores: dict[tuple[ast.AST, str], list[ast.Name]] = {}
        for name in self.all(ast.Name):
            if isinstance(name.ctx, ast.Store):
                stores.setdefault((self.scope(name), name.id), []).append(name)
        return stores

    def loads(self, scope: ast.AST, name: str) -> list[ast.Name]:
        """Where a name is read inside a scope or any other node, nested functions too."""
        return [
            node
            for node in self.walk(scope)
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        ]

    def binding(self, name: ast.Name) -> ast.Name | ast.arg | None:
        """Where the value of a name was bound: the nearest assignment before it, or a parameter.

        In an outer scope, the last assignment counts. None where nothing in the file binds the name.
        """
        inner = self._comprehension_target(name)
        if inner is not None:
            return inner
        scope: ast.AST | None = self.scope(name)
        own = True
        while scope is not None:
            if not isinstance(scope, ast.ClassDef) or own:
                stores = self.stores.get((scope, name.id), [])
                place = (name.lineno, name.col_offset)
                statement = self.statement(name) if own else None
                before = [
                    s
                    for s in stores
                    if not own or (_place(s) < place and not self._assigns_later(s, statement))
                ]
                if before:
                    return before[-1]
                if isinstance(scope, (*FUNCTIONS, ast.Lambda)):
                    for argument in parameters(scope):
                        if argument.arg == name.id:
                            return argument
                if stores:
                    return stores[0]  # a loop's later assignment is all there is
            own = False
            scope = self.scope(scope) if scope is not self.tree else None
        return None

    def _comprehension_target(self, name: ast.Name) -> ast.Name | None:
        """Where a comprehension around a name binds it; its first iterable is evaluated outside."""
        for parent in self.ancestors(name):
            if isinstance(parent, ast.stmt):
                return None
            if isinstance(parent, COMPREHENSIONS) and not self.inside(name, parent.generators[0].iter):
                for generator in parent.generators:
                    for node in self.walk(generator.target):
                        if isinstance(node, ast.Name) and node.id == name.id and node is not name:
                            return node
        return None

    def _assigns_later(self, store: ast.Name, statement: ast.stmt | None) -> bool:
        """Whether a store belongs to the assignment whose value is being read: `x = f(x)` reads the old x."""
        return isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and self.inside(
            store, statement
        )

    def assigned_value(self, store: ast.Name) -> ast.expr | None:
        """The expression whose value a name gets, where the assignment has a single target; else None."""
        parent = self.parents[store]
        if isinstance(parent, ast.Assign) and store in parent.targets:
            return parent.value
        if isinstance(parent, ast.AnnAssign | ast.NamedExpr) and parent.target is store:
            return parent.value
        return None


def parameters(scope: Function | ast.Lambda) -> list[ast.arg]:
    args = scope.args
    extra = [argument for argument in (args.vararg, args.kwarg) if argument is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *extra]


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument of a call by keyword or, where it can be given that way, by position."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    before = call.args[: position + 1] if position is not None else []
    if position is None or len(call.args) <= position or any(isinstance(arg, ast.Starred) for arg in before):
        return None
    return call.args[position]


def forwards(call: ast.Call) -> bool:
    """Whether a call passes on arguments that cannot be seen: `f(*args, **kwargs)`."""
    return any(keyword.arg is None for keyword in call.keywords) or any(
        isinstance(arg, ast.Starred) for arg in call.args
    )


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def method(node: ast.AST | None) -> str:
    """The name of the method that a call calls: `item` of `x.item()`; empty for others."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def receiver(call: ast.Call) -> ast.expr:
    """The object whose method is called."""
    assert isinstance(call.func, ast.Attribute)
    return call.func.value


def root(node: ast.expr) -> ast.expr:
    """The innermost object of a chain: `x` of `x[i].a.b(c)`."""
    while True:
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return node


def _place(node: ast.Name) -> tuple[int, int]:
    return (node.lineno, node.col_offset)


def _in_body(parent: ast.AST, child: ast.AST) -> bool:
    return child in getattr(parent, "body", ())
