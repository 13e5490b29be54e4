"""How to recompute the chosen modules: short names for many of them, and code to paste into the script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pinchpoint.planning.checkpointing.module_choice import Candidate

_SHARDED = ("FullyShardedDataParallel", "FSDPModule", "DistributedDataParallel")
_WIDTH = 100
_POLICY = [
    "products = [",
    '    getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "convolution",',
    '    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",',
    '    "_scaled_dot_product_cudnn_attention")',
    "]",
    "policy = partial(create_selective_checkpoint_contexts, products)",
]


def split_root(name: str) -> tuple[str, str]:
    """The class of the model and the name inside it: `GPT.blocks.0` -> `GPT`, `blocks.0`."""
    root, _, rest = name.partition(".")
    return root, rest


def shorten(names: Iterable[str]) -> dict[str, list[str]]:
    """Names that differ in one number as one, with the names that it stands for.

    `blocks.0`, `blocks.1`, `blocks.2` -> `blocks.0-2`.
    """
    names = list(names)
    ways = [_grouped(names, last) for last in (False, True)]
    groups = min(ways, key=len)
    return {
        f"{before}{_ranges(list(by_number))}{after}" if by_number else before: members
        for (before, after), (by_number, members) in groups.items()
    }


def _grouped(names: list[str], last: bool) -> dict[tuple[str, str], tuple[list[int], list[str]]]:
    groups: dict[tuple[str, str], tuple[list[int], list[str]]] = {}
    for name in names:
        numbers = list(re.finditer(r"(?<![^.])\d+(?![^.])", name))
        if not numbers:
            groups[(name, "")] = [], [name]
            continue
        match = numbers[-1 if last else 0]
        key = name[: match.start()], name[match.end() :]
        by_number, members = groups.setdefault(key, ([], []))
        by_number.append(int(match.group()))
        members.append(name)
    return groups


def _ranges(numbers: list[int]) -> str:
    """`0-2,5` for 0, 1, 2, 5."""
    texts: list[str] = []
    numbers = sorted(set(numbers))
    start = previous = numbers[0]
    for number in [*numbers[1:], -1]:
        if number != previous + 1:
            texts.append(str(start) if start == previous else f"{start}-{previous}")
            start = number
        previous = number
    return ",".join(texts)


def ways_to_switch_on(
    chosen: Sequence[Candidate], every: Sequence[Candidate], roots: dict[str, list[str]]
) -> tuple[dict[str, str], ...]:
    """Code for the user's script. roots: the classes of each outermost module, with those it derives from."""
    ways: list[dict[str, str]] = []
    by_root: dict[str, list[Candidate]] = {}
    for candidate in chosen:
        by_root.setdefault(split_root(candidate.name)[0], []).append(candidate)
    for root, candidates in by_root.items():
        bases = roots.get(root, [])
        names = [split_root(candidate.name)[1] for candidate in candidates]
        layers = {c.name for c in every if c.is_layer and split_root(c.name)[0] == root}
        kept = [split_root(c.name)[1] for c in candidates if c.keeps_products]
        if "PreTrainedModel" in bases and layers == {c.name for c in candidates} and not kept:
            ways.append(
                {
                    "title": "all layers, with transformers",
                    "code": "model.gradient_checkpointing_enable("
                    'gradient_checkpointing_kwargs={"use_reentrant": False})',
                }
            )
        has_layers = any(candidate.is_layer for candidate in candidates)
        ways.append(
            {
                "title": f"in PyTorch, after the {root} is built and before it is called",
                "code": _plain_code([n for n in names if n not in kept], kept, without_cache=has_layers),
            }
        )
        if any(base in _SHARDED for base in bases) and not kept:
            ways.append(
                {"title": "with FSDP or DDP, before it wraps the model", "code": _wrapper_code(names)}
            )
    return tuple(ways)


def _plain_code(names: Sequence[str], kept: Sequence[str], *, without_cache: bool) -> str:
    """kept: those in which the results of products are kept."""
    lines = ["from functools import partial", *(["import torch"] if kept else [])]
    policy = ", create_selective_checkpoint_contexts" if kept else ""
    lines += [f"from torch.utils.checkpoint import checkpoint{policy}", ""]
    if without_cache:
        lines.append("model.config.use_cache = False  # a layer that is recomputed cannot fill a cache")
    branches = []
    if names:
        lines += _name_lines("RECOMPUTED", names)
        branches += [
            "    if name in RECOMPUTED:",
            "        module.forward = partial(checkpoint, module.forward, use_reentrant=False)",
        ]
    if kept:
        lines += [*_name_lines("KEEPING_PRODUCTS", kept), *_POLICY]
        branches += [
            "    if name in KEEPING_PRODUCTS:",
            "        module.forward = partial(",
            "            checkpoint, module.forward, use_reentrant=False, context_fn=policy",
            "        )",
        ]
    return "\n".join([*lines, "for name, module in model.named_modules():", *branches])


def _wrapper_code(names: Sequence[str]) -> str:
    module = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    return "\n".join(
        [
            f"from {module} import apply_activation_checkpointing",
            "",
            *_name_lines("RECOMPUTED", [name.removeprefix("module.") for name in names]),
            "chosen = {module for name, module in model.named_modules() if name in RECOMPUTED}",
            "apply_activation_checkpointing(model, check_fn=chosen.__contains__)",
        ]
    )


def _name_lines(variable: str, names: Sequence[str]) -> list[str]:
    """The set of names, with a range for names that differ in a number."""
    parts: list[str] = []
    singles: list[str] = []
    for members in shorten(names).values():
        pattern = _as_range(members)
        if pattern is None:
            singles += members
        else:
            parts.append(f"*({pattern})")
    if singles:
        parts.append(", ".join(repr(name).replace("'", '"') for name in singles))
    text = f"{variable} = {{{', '.join(parts)}}}"
    if len(text) <= _WIDTH:
        return [text]
    return [f"{variable} = {{", *(f"    {part}," for part in parts), "}"]


def _as_range(members: list[str]) -> str | None:
    """`f"blocks.{i}" for i in range(8)`, for three names or more that differ in one number."""
    split = [re.split(r"(?<![^.])(\d+)(?![^.])", name) for name in members]
    if len(members) < 3 or len({len(parts) for parts in split}) > 1:
        return None
    places = [at for at in range(len(split[0])) if len({parts[at] for parts in split}) > 1]
    if len(places) != 1:
        return None
    numbers = sorted(int(parts[places[0]]) for parts in split)
    text = "".join("{i}" if at == places[0] else part for at, part in enumerate(split[0]))
    steps = f"range({numbers[-1] + 1})" if numbers[0] == 0 else f"range({numbers[0]}, {numbers[-1] + 1})"
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        steps = f"({', '.join(map(str, numbers))})"
    return f'f"{text}" for i in {steps}'


def groups_of(chosen: Sequence[Candidate]) -> tuple[dict[str, Any], ...]:
    """The chosen modules as rows of a table, those that differ in one number as one row."""
    rows = []
    for keeps_products in (False, True):
        by_name = {c.name: c for c in chosen if c.keeps_products == keeps_products}
        for short, members in shorten(by_name).items():
            candidates = [by_name[name] for name in members]
            rows.append(
                {
                    "modules": split_root(short)[1],
                    "class": ", ".join(sorted({candidate.class_name for candidate in candidates})),
                    "keeps": "products" if keeps_products else "",
                    "count": len(candidates),
                    "freed_bytes": sum(candidate.freed_bytes for candidate in candidates),
                    "recompute_s": sum(max(c.device_s, c.host_s) for c in candidates),
                }
            )
    return tuple(rows)
