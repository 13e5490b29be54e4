"""`read_hlo`: the program of one device, from XLA's text of a partitioned module, as a `Program`.

XLA partitions a program over N devices before it fuses anything, so the text still has one instruction per
operation, with the shapes of one device and the collectives between devices. Calls are inlined. An element
of a loop's state that every turn passes on unchanged is not copied.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pinchpoint.backends.jax.hlo_text import array_bytes, dimensions
from pinchpoint.backends.jax.library_memory import Convolution
from pinchpoint.backends.jax.primitives import Kind
from pinchpoint.backends.jax.program import Body, Op, Program, drop_dead, phase_of
from pinchpoint.backends.jax.sharded.communicators import Groups, read_groups
from pinchpoint.backends.jax.sharded.hlo_module import Instruction, Module, parts, read_module

_CALLED = re.compile(r"\b(calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_METADATA = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_GROUPS = re.compile(r"replica_groups=(mesh\[.*?\}|\[.*?\]<=\S+|\{.*?\}\})")
_WINDOW = re.compile(r"window=\{size=([\dx]+)")
_INDEX = re.compile(r"\bindex=(\d+)")

COLLECTIVES = frozenset(
    {
        "all-reduce",
        "all-gather",
        "all-to-all",
        "ragged-all-to-all",
        "reduce-scatter",
        "collective-permute",
        "collective-broadcast",
    }
)
_SCRATCH = frozenset({"convolution", "fft", "sort", "topk", "cholesky", "triangular-solve"})
# XLA's name of an operation, by its `Kind`; other operations are opaque: their arrays are all in memory.
_KINDS: dict[Kind, str] = {
    "alias": "reshape bitcast bitcast-convert optimization-barrier opt-barrier add-dependency domain",
    "cheap": "broadcast convert iota transpose reverse copy",
    "arithmetic": "add subtract multiply negate abs sign maximum minimum floor ceil round-nearest-afz "
    "round-nearest-even compare and or not xor select clamp is-finite shift-left shift-right-arithmetic "
    "shift-right-logical popcnt count-leading-zeros real imag complex reduce-precision stochastic-convert",
    "costly": "exponential exponential-minus-one log log-plus-one tanh logistic sine cosine tan atan2 sqrt "
    "rsqrt cbrt power divide remainder erf slice dynamic-slice gather pad concatenate",
    "reduce": "reduce",
    "update": "dynamic-update-slice scatter",
    "dot": "dot ragged-dot scaled-dot",
}
_KIND_OF: dict[str, Kind] = {name: kind for kind, names in _KINDS.items() for name in names.split()}

Value = Any  # a Ref, or a list of Values for a tuple


@dataclass(frozen=True)
class PartitionedProgram:
    """The program of one device.

    groups: the different groups of devices that its collectives connect
    products: bytes of the operands and the result of each matrix product
    sorts: the most scratch memory of a sort; library_bytes: the largest operands and results of another call
    """

    program: Program
    groups: frozenset[Groups]
    products: tuple[tuple[int, ...], ...]
    convolutions: tuple[Convolution, ...]
    sorts: int
    library_bytes: int


def read_hlo(text: str, *, is_user_file: Callable[[str], bool]) -> PartitionedProgram:
    """The entry computation of a module, flattened. Its inputs are the module's parameters in order."""
    module = read_module(text, is_user_file)
    build = _Builder(module)
    instructions = module.computations[module.entry]
    parameters = sorted((i for i in instructions if i.opcode == "parameter"), key=lambda i: int(i.literal))
    args = [build.fresh(i.shape) for i in parameters]
    root = build.inline(module.entry, args)
    inputs = tuple(build.flat(args))
    donated = frozenset(value for i in module.donated if i < len(args) for value in build.flat(args[i]))
    results = tuple(build.outputs(root, taken=set(inputs) - donated))
    program = Program(
        tuple(build.sizes),
        drop_dead(build.ops, results),
        inputs,
        results,
        donated,
        (),
        tuple(sorted(build.scratch)),
    )
    return PartitionedProgram(
        program,
        frozenset(build.groups),
        tuple(build.products),
        tuple(build.convolutions),
        build.sorts,
        build.library_bytes,
    )


@dataclass
class _Builder:
    module: Module
    sizes: list[int] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    scratch: set[str] = field(default_factory=set)
    groups: set[Groups] = field(default_factory=set)
    products: list[tuple[int, ...]] = field(default_factory=list)
    convolutions: list[Convolution] = field(default_factory=list)
    sorts: int = 0
    library_bytes: int = 0

    def value(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def fresh(self, shape: str) -> Value:
        """New values of a shape: a list for a tuple."""
        if shape.startswith("("):
            return [self.fresh(part) for part in parts(shape)]
        return self.value(array_bytes(shape))

    def flat(self, value: Value) -> Iterator[int]:
        if isinstance(value, list):
            for item in value:
                yield from self.flat(item)
        elif value is not None:
            yield value

    def outputs(self, root: Value, *, taken: set[int]) -> Iterator[int]:
        """The results, each in memory of its own: one that is returned twice, or an argument, is copied."""
        for value in self.flat(root):
            if value in taken:
                copy = self.value(self.sizes[value])
                self.ops.append(Op("copy", "opaque", (value,), (copy,)))
                yield copy
            else:
                taken.add(value)
                yield value

    def inline(self, computation: str, args: Sequence[Value]) -> Value:
        env: dict[str, Value] = {}
        for instruction in self.module.computations[computation]:
            if instruction.opcode == "parameter":
                env[instruction.name] = args[int(instruction.literal)]
            else:
                env[instruction.name] = self._instruction(
                    instruction, [env[name] for name in instruction.operands]
                )
        return env[self.module.roots[computation]]

    def _instruction(self, i: Instruction, operands: list[Value]) -> Value:
        opcode = i.opcode
        if opcode == "tuple":
            return operands
        if opcode == "get-tuple-element":
            return operands[0][int(_INDEX.search(i.text)[1])]  # pyright: ignore[reportOptionalSubscript]
        if opcode == "constant":
            # Constants of more than a few elements take memory; XLA keeps them with the program.
            return None if math.prod(dimensions(i.shape)) <= 1 else self._add(i, [], "cheap")
        if opcode in ("after-all", "partition-id", "replica-id"):
            return None
        called = dict(_CALLED.findall(i.text))
        if opcode in ("call", "fusion", "async-start"):
            return self.inline(called.get("calls") or called["to_apply"], operands)
        if opcode == "while":
            return self._while(i, operands[0], called["body"])
        if opcode == "conditional":
            return self._conditional(i, operands, called)
        kind = _KIND_OF.get(opcode, "opaque")
        size = array_bytes(i.shape)
        inputs = list(self.flat(operands))
        if kind == "alias" and isinstance(operands[0], list):
            return operands[0]
        moves_nothing = kind == "alias" or opcode == "broadcast"
        if moves_nothing and len(operands) == 1 and inputs and self.sizes[inputs[0]] == size:
            return operands[0]
        if opcode in COLLECTIVES:
            # A permutation is one communicator of all devices; what XLA does not list is all of them, too.
            listed = _GROUPS.search(i.text)
            self.groups.add(read_groups(listed[1]) if listed else frozenset())
        self._note(i, inputs, size)
        return self._add(i, inputs, "cheap" if kind == "alias" else kind)

    def _note(self, i: Instruction, inputs: Sequence[int], size: int) -> None:
        """Remember what libraries may take while this runs or is tuned."""
        sizes = (*(self.sizes[value] for value in inputs), size)
        target = re.search(r'custom_call_target="([^"]*)"', i.text)
        if i.opcode == "dot":
            self.products.append(sizes)
        elif i.opcode == "convolution":
            window = _WINDOW.search(i.text)
            elements = math.prod(int(n) for n in window[1].split("x")) if window else 1
            self.convolutions.append(Convolution(sizes, elements, not i.shape.startswith(("bf16", "f16"))))
        elif i.opcode in ("sort", "topk") or (target and target[1] == "TopK"):
            self.sorts = max(self.sorts, 3 * sum(sizes))
        elif i.opcode in _SCRATCH or target:
            self.library_bytes = max(self.library_bytes, sum(sizes))
        if i.opcode in _SCRATCH:
            self.scratch.add(i.opcode)
        if target:
            self.scratch.add(target[1])

    def _add(self, i: Instruction, inputs: Sequence[int], kind: Kind) -> Value:
        result = self.fresh(i.shape)
        outs = tuple(self.flat(result))
        op = self._op(i, kind, tuple(dict.fromkeys(inputs)), outs)
        if kind == "update":
            op = replace(op, in_place=((inputs[0], outs[0]),) if inputs else ())
        elif i.opcode == "all-reduce":
            op = replace(op, in_place=tuple(zip(inputs, outs, strict=False)))
        self.ops.append(op)
        return result

    def _op(self, i: Instruction, kind: Kind, inputs: tuple[int, ...], outs: tuple[int, ...]) -> Op:
        name = _METADATA.search(i.text)
        frame = _FRAME.search(i.text)
        source = _SOURCE.search(i.text)
        file, line = self.module.frame(int(frame[1])) if frame else ("", 0)
        if source and not frame:
            file, line = source[1], int(source[2])
        return Op(i.opcode, kind, inputs, outs, file, line, phase_of(name[1] if name else ""))

    def _body(
        self, computation: str, args: Sequence[Value], build: _Builder, carry: Sequence[int]
    ) -> Program:
        root = build.inline(computation, args)
        results = tuple(dict.fromkeys(build.flat(root)))
        self.scratch |= build.scratch
        self.groups |= build.groups
        self.products += build.products
        self.convolutions += build.convolutions
        self.sorts = max(self.sorts, build.sorts)
        self.library_bytes = max(self.library_bytes, build.library_bytes)
        return Program(
            tuple(build.sizes), drop_dead(build.ops, results), tuple(carry), results, frozenset(carry)
        )

    def _while(self, i: Instruction, state: Value, computation: str) -> Value:
        instructions = {item.name: item for item in self.module.computations[computation]}
        root = instructions[self.module.roots[computation]]
        state = list(state) if isinstance(state, list) else [state]
        kept = {
            index
            for index, name in enumerate(root.operands if root.opcode == "tuple" else ())
            if instructions[name].opcode == "get-tuple-element"
            and instructions[instructions[name].operands[0]].opcode == "parameter"
            and int(_INDEX.search(instructions[name].text)[1]) == index  # pyright: ignore[reportOptionalSubscript]
        }
        build = _Builder(self.module)
        # What a turn only reads belongs to the caller: it has no bytes inside.
        shapes = list(parts(i.shape)) if i.shape.startswith("(") else [i.shape]
        args = [
            self._outer(build, shape) if n in kept else build.fresh(shape) for n, shape in enumerate(shapes)
        ]
        carry = [v for n, arg in enumerate(args) if n not in kept for v in build.flat(arg)]
        program = self._body(computation, [args], build, carry)
        result = [state[n] if n in kept else self.fresh(shape) for n, shape in enumerate(shapes)]
        outs = [v for n, arg in enumerate(result) if n not in kept for v in self.flat(arg)]
        inputs = tuple(dict.fromkeys(self.flat(state)))
        shared = sum(self.sizes[v] for v in outs)
        op = self._op(i, "opaque", inputs, tuple(outs))
        in_place = tuple(
            pair
            for n, (before, after) in enumerate(zip(state, result, strict=True))
            if n not in kept
            for pair in zip(self.flat(before), self.flat(after), strict=False)
            if self.sizes[pair[0]] == self.sizes[pair[1]]
        )
        self.ops.append(replace(op, bodies=(Body(program, shared),), in_place=in_place))
        return result

    def _conditional(self, i: Instruction, operands: list[Value], called: dict[str, str]) -> Value:
        listed = _BRANCHES.search(i.text)
        names = [name.strip().lstrip("%") for name in listed[1].split(",")] if listed else []
        names = names or [called["true_computation"], called["false_computation"]]
        bodies = []
        for name, argument in zip(names, operands[1:], strict=False):
            build = _Builder(self.module)
            bodies.append(self._body(name, [_zeros(build, argument)], build, ()))
        result = self.fresh(i.shape)
        outs = tuple(self.flat(result))
        shared = sum(self.sizes[v] for v in outs)
        op = self._op(i, "opaque", tuple(dict.fromkeys(self.flat(operands))), outs)
        self.ops.append(replace(op, bodies=tuple(Body(program, shared) for program in bodies)))
        return result

    def _outer(self, build: _Builder, shape: str) -> Value:
        if shape.startswith("("):
            return [self._outer(build, part) for part in parts(shape)]
        return build.value(0)


def _zeros(build: _Builder, value: Value) -> Value:
    """Values without bytes in the form of `value`: the caller counts them."""
    if isinstance(value, list):
        return [_zeros(build, item) for item in value]
    return None if value is None else build.value(0)
