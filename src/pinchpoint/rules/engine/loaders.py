"""DataLoaders of a file: where they are built, with which options, and which loop goes over which."""

from __future__ import annotations

import ast
import re

from pinchpoint.rules.engine.source import COMPREHENSIONS, Source, argument, forwards, is_constant, root

LOADERS = frozenset(
    {"torch.utils.data.DataLoader", "torch_geometric.loader.DataLoader", "torch_geometric.data.DataLoader"}
)


def loaders(source: Source) -> list[ast.Call]:
    """The calls that build a DataLoader whose options can all be read."""
    return [call for call in source.calls if source.name(call.func) in LOADERS and not forwards(call)]


def option(call: ast.Call, name: str) -> ast.expr | None:
    """An option of a loader; None if it is not given."""
    positions = {"batch_size": 1, "shuffle": 2, "num_workers": 5, "collate_fn": 6, "pin_memory": 7}
    return argument(call, name, positions.get(name))


def pins(loader: ast.Call) -> bool | None:
    """Whether a loader pins its batches; None if that cannot be read."""
    value = option(loader, "pin_memory")
    if value is None or is_constant(value, False):
        return False
    return True if is_constant(value, True) else None


def loader_of(source: Source, batch: ast.expr) -> ast.Call | None:
    """The loader that a batch comes from: the loop that binds its name goes over a loader of the same
    file."""
    base = root(batch)
    for _ in range(4):
        if not isinstance(base, ast.Name):
            return None
        store = source.binding(base)
        if not isinstance(store, ast.Name):
            return None
        parent = source.parents[store]
        while isinstance(parent, ast.Tuple | ast.List | ast.Starred):
            parent = source.parents[parent]
        if isinstance(parent, ast.For):
            return _loader(source, parent.iter)
        if isinstance(parent, ast.comprehension):  # {key: value.to(device) for key, value in batch.items()}
            loader = _loader(source, parent.iter)
            if loader is not None:
                return loader
            base = root(parent.iter)
            continue
        if not isinstance(parent, ast.Assign):
            return None
        base = root(parent.value)
    return None


def _loader(source: Source, iterable: ast.expr) -> ast.Call | None:
    while isinstance(iterable, ast.Call) and iterable.args and source.called(iterable) not in LOADERS:
        last = source.called(iterable).rpartition(".")[2]
        if last not in ("enumerate", "tqdm", "iter", "islice", "track", "trange", "zip"):
            return None
        iterable = iterable.args[0]
    if isinstance(iterable, ast.Attribute) and source.name(iterable.value) == "self":
        return _only_loader(source, iterable.attr)
    if isinstance(iterable, ast.Name):
        store = source.binding(iterable)
        value = source.assigned_value(store) if isinstance(store, ast.Name) else None
        if value is not None:
            iterable = value
        elif isinstance(store, ast.arg):
            return _only_loader(source, iterable.id)
    if isinstance(iterable, ast.Call) and source.called(iterable) in LOADERS and not forwards(iterable):
        return iterable
    return None


def _only_loader(source: Source, name: str) -> ast.Call | None:
    """The loader that a parameter or attribute is, where the file assigns a single one to that name."""
    matches = [
        call
        for call in loaders(source)
        if isinstance(parent := source.parents[call], ast.Assign)
        and any(source.name(target).rpartition(".")[2] == name for target in parent.targets)
    ]
    return matches[0] if len(matches) == 1 else None


def uses_device(source: Source) -> bool:
    """Whether a file moves data to a device."""
    return re.search(r"\.cuda\(|\.to\([^)]*(device|cuda)|accelerator", source.text) is not None


def in_memory(source: Source, loader: ast.Call) -> bool:
    """Whether the dataset is a tensor that is already in memory, for which workers do not pay."""
    dataset = argument(loader, "dataset", 0)
    if isinstance(dataset, ast.Name):
        store = source.binding(dataset)
        dataset = (source.assigned_value(store) if isinstance(store, ast.Name) else None) or dataset
    if isinstance(dataset, (ast.List, ast.Tuple, *COMPREHENSIONS)):
        return True
    name = source.called(dataset)
    last = name.rpartition(".")[2]
    return last in ("TensorDataset", "DictDataset", "ListDataset", "list", "zip", "range")


def dataset_of(source: Source, loader: ast.Call) -> ast.ClassDef | None:
    """The class of a loader's dataset, where the file defines it."""
    value = argument(loader, "dataset", 0)
    if isinstance(value, ast.Name):
        store = source.binding(value)
        if isinstance(store, ast.arg):
            name = source.name(store.annotation)
            return next((node for node in source.all(ast.ClassDef) if node.name == name), None)
        value = source.assigned_value(store) if isinstance(store, ast.Name) else None
    name = source.called(value)
    return next((node for node in source.all(ast.ClassDef) if node.name == name), None)
