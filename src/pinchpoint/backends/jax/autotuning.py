"""The fusions that XLA tunes on a card: the kernels it will choose, and the memory that trying them takes.

XLA (from JAX 0.11) fuses a program first. Then it times kernels: for every fusion with a matrix product, its
own kernels against those of cuBLAS; for one with a reduction or a transposition, two kernels of its own. No
card is needed to see these fusions: with `asking_options` XLA stops there and writes the program to a folder,
where `read_fusions` finds them. `write_choices` gives XLA the answers of the autotuner through its cache, so
that it compiles with the kernels that the card is expected to choose.

The memory for trying a fusion follows XLA's source and was right to 256 bytes for 16 programs on an H200: the
operands, the output twice, the temporaries of cuBLAS's way, and guard zones around every array.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.compile_targets import Chip
from pinchpoint.backends.jax.convolution_tuning import GUARDS, convolution_tuning_bytes
from pinchpoint.backends.jax.hlo_text import array_bytes, dimensions

_MIB = 1 << 20
CONVOLUTION_SPREAD = 400 * _MIB  # by which convolutions exceeded their law
# The key of a tuning result contains a number that grows with every upgrade of Triton: 50 to 59 in JAX 0.11.
_KEY_VERSIONS = range(1, 100)
_PASSED_THROUGH = frozenset(
    {"bitcast", "transpose", "reshape", "copy"}
)  # cuBLAS reads the operand behind them
# The allocator does not split a free block if less than 128 MiB would be left over, so arrays may take up to
# that much more; while products were tuned, this added up to 209 MiB.
UNSPLIT = 256 * _MIB
_TUNED = frozenset({"dot", "reduce", "transpose"})
_NOT_TUNED = frozenset({"scatter", "fusion", "while", "call", "conditional"})  # no fusion has the last four
# XLA's own kernels are chosen for products that are narrow in one direction or small: fitted to products of
# ten programs that were timed on an H200, and then to those of six steps of `vmc`.
_NARROW = 64
_SMALL = 1.3e9  # floating-point operations
# They work on blocks whose sides are powers of two, so part of the work is wasted at other widths, and cuBLAS
# is chosen for smaller products; also for few results of long sums, which it divides.
_LEAST_UNEVEN, _LEAST_WIDTH = 5e7, 32
_FEW, _LONG = 64, 1024
# To compute operands for cuBLAS first must be worthwhile: so many operations per byte of them, for 32-bit and
# 16-bit numbers, from the rates of both kernels and of the memory.
_PER_BYTE, _PER_BYTE_OF_HALF = 100, 1600

_BLOCK = re.compile(r"^\{\n.*?^\}", re.DOTALL | re.MULTILINE)
_HEADER = re.compile(r"^%?([\w.\-]+) (?:\(.*)?\{$", re.MULTILINE)
_LINE = re.compile(r"^  (ROOT )?(\S+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$", re.MULTILINE)
_CONSTANT = re.compile(r"(\w+)(\[[^\]]*\]\S*) constant\(([^()]*)\)")


@dataclass(frozen=True)
class Product:
    """A fusion with a matrix product of `batch` matrices (rows x inner) @ (inner x columns).

    key: the fusion's text in XLA's canonical form
    names: of the computations with this text
    prepared_bytes: what cuBLAS's way adds to workspace: operands that must be computed first
    """

    key: str
    batch: int
    rows: int
    columns: int
    inner: int
    operand_bytes: tuple[int, ...]
    output_bytes: int
    prepared_bytes: int
    itemsize: int = 4  # bytes of a number of its operands
    names: tuple[str, ...] = ()

    def tuning_bytes(self, workspace_bytes: int) -> int:
        """Memory while XLA tries kernels: operands, a reference output, an output, cuBLAS's temporaries."""
        arrays = sum(self.operand_bytes) + 2 * self.output_bytes + self.prepared_bytes + workspace_bytes
        return arrays + GUARDS * (len(self.operand_bytes) + 2)

    @property
    def prefers_cublas(self) -> bool:
        operations = 2 * self.batch * self.rows * self.columns * self.inner
        worthwhile = self.prepared_bytes * (_PER_BYTE if self.itemsize > 2 else _PER_BYTE_OF_HALF)
        if self.batch == 1 and self.rows * self.columns <= _FEW and self.inner >= _LONG:
            return operations >= worthwhile
        width = min(self.rows, self.columns)
        if is_uneven := width > _LEAST_WIDTH and width & (width - 1) != 0:
            least = _LEAST_UNEVEN
        else:
            least = _SMALL
        return (is_uneven or min(width, self.inner) > _NARROW) and operations >= max(least, worthwhile)


@dataclass(frozen=True)
class Fusions:
    """What XLA tunes in a program.

    other_bytes: the most memory for tuning a fusion without a product
    convolution_bytes: the most memory for tuning a convolution
    """

    products: tuple[Product, ...]
    other_bytes: int = 0
    convolution_bytes: int = 0

    def tuning_bytes(self, workspace_bytes: int) -> tuple[int, int]:
        """Memory while XLA tries kernels: usual and most."""
        fused = max([self.other_bytes, *(product.tuning_bytes(workspace_bytes) for product in self.products)])
        convolution = self.convolution_bytes
        most = max(
            fused + UNSPLIT if fused else 0,
            convolution + convolution // 20 + CONVOLUTION_SPREAD if convolution else 0,
        )
        return max(fused, convolution), most


def asking_options(folder: Path) -> dict[str, bool | int | str]:
    """Options with which XLA writes its program to the folder and stops before products are tuned."""
    return {
        "xla_gpu_autotune_level": 0,
        "xla_gpu_require_complete_aot_autotune_results": True,
        "xla_dump_to": str(folder),
    }


def read_fusions(folder: Path) -> Fusions | None:
    """What would be tuned, each different product once; None if XLA did not write its program."""
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*before_config_assignment.txt"))
    canonical = compat.canonical_hlo(text) if text else ""
    if not canonical:
        return None
    products: dict[str, Product] = {}
    other_bytes = 0
    for name, body, has_kernel in _bodies(text, canonical):
        if " dot(" not in body:
            other_bytes = max(other_bytes, 0 if has_kernel else _other_tuning_bytes(body))
        elif (product := products.get(body) or _product(body)) is not None:
            products[body] = replace(product, names=(*product.names, name))
    return Fusions(tuple(products.values()), other_bytes, convolution_tuning_bytes(canonical))


def write_choices(folder: Path, products: Iterable[Product], chip: Chip, *, workspace_bytes: int) -> None:
    """Write a cache of tuning results in which cuBLAS is the fastest for all these products."""
    answer = f"gemm {{ algorithm: 0 autotune_workspace_size: {workspace_bytes} }}\n"
    for product in products:
        for version in _KEY_VERSIONS:
            key = f"<key model='{card_key(chip)}', hlo='{product.key}', version={version}>"
            name = base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()).decode().rstrip("=")
            (folder / f"{name}.textproto").write_text(answer, encoding="ascii")


def choice_options(folder: Path) -> dict[str, bool | int | str]:
    """Options with which XLA takes the choices in the folder."""
    return {
        "xla_gpu_autotune_level": 0,
        "xla_gpu_use_new_autotune_cache_format": False,
        "xla_gpu_per_fusion_autotune_cache_dir": str(folder),
        "xla_gpu_experimental_autotune_cache_mode": "AUTOTUNE_CACHE_MODE_READ",
    }


def without_kernel(products: Iterable[Product], message: str) -> list[Product]:
    """The products that XLA says it has no kernel of its own for."""
    named = set(re.findall(r"No supported config found for HLO: .*?calls=%?([\w.\-]+)", message))
    return [product for product in products if named & set(product.names)]


def card_key(chip: Chip) -> str:
    """The card in the key of a tuning result."""
    major, minor = chip.capability
    return (
        f"CUDA: {major}.{minor}, Cores: {chip.cores}, GPU clock: {chip.clock_ghz:.6g} GHz, Memory bandwidth: "
        f"{round(chip.bandwidth / 1e9)} GB/s, L2 cache: {chip.l2 / _MIB:.6g} MB, DNN version: 0.0.0"
    )


def _bodies(text: str, canonical: str) -> Iterator[tuple[str, str, bool]]:
    """Names and bodies of the fusions that are tuned, written as XLA writes them in its keys.

    With each: whether XLA has already chosen a kernel, as for a softmax; this does not hold for products.
    """
    chosen = set(re.findall(r"kind=kCustom, calls=%?([\w.\-]+)", text))
    names = _HEADER.findall(text)
    blocks = _BLOCK.findall(canonical)
    if len(names) != len(blocks):  # both list the computations in the same order
        names = [""] * len(blocks)
    for name, block in zip(names, blocks, strict=True):
        operations = {op for _, _, _, op, _ in _LINE.findall(block)}
        if operations & _TUNED and not operations & _NOT_TUNED:
            yield name, _CONSTANT.sub(_essential_constant, block), name in chosen


def _other_tuning_bytes(body: str) -> int:
    """Memory for tuning a fusion without a product. One with several results has only one kernel."""
    lines = _LINE.findall(body)
    root = next((shape for is_root, _, shape, op, _ in lines if is_root and op != "tuple"), None)
    if root is None:
        return 0
    operands = [array_bytes(shape) for _, _, shape, op, _ in lines if op == "parameter"]
    return sum(operands) + 2 * array_bytes(root) + GUARDS * (len(operands) + 1)


def _essential_constant(match: re.Match[str]) -> str:
    """A constant as in XLA's keys, which leave out the values of floats other than 0 and 1."""
    dtype, shape, value = match.groups()
    words = set(re.findall(r"[^\s,{}]+", value))
    if words <= {"0", "-0", "false"}:
        value = "0"
    elif words <= {"1", "true"}:
        value = "1"
    elif not re.match(r"[su]\d", dtype):
        value = "{...}"
    return f"{dtype}{shape} constant({value})"


def _product(key: str) -> Product | None:
    lines = {name: (shape, op, rest) for _, name, shape, op, rest in _LINE.findall(key)}
    dot = next(((shape, rest) for shape, op, rest in lines.values() if op == "dot"), None)
    root = next((shape for is_root, _, shape, _, _ in _LINE.findall(key) if is_root), None)
    if dot is None or root is None:
        return None
    dot_shape, rest = dot
    names = re.findall(r"\S+\[[\d,]*\]\S* (\w+)", rest.partition("), ")[0])
    left, right = (dimensions(lines[name][0]) for name in names[:2])
    batch = math.prod(left[i] for i in _axes(rest, "lhs_batch_dims"))
    inner = math.prod(left[i] for i in _axes(rest, "lhs_contracting_dims"))
    prepared = sum(array_bytes(lines[name][0]) for name in names[:2] if not _is_parameter(name, lines))
    if array_bytes(dot_shape) != array_bytes(root):
        prepared += array_bytes(dot_shape)  # the product cannot be written where the result goes
    return Product(
        key,
        batch,
        math.prod(left) // (batch * inner),
        math.prod(right) // (batch * inner),
        inner,
        tuple(array_bytes(shape) for shape, op, _ in lines.values() if op == "parameter"),
        array_bytes(root),
        prepared,
        array_bytes(lines[names[0]][0]) // math.prod(left),
    )


def _is_parameter(name: str, lines: dict[str, tuple[str, str, str]]) -> bool:
    """Whether a value is an operand of the fusion, at most seen with another shape."""
    _, op, rest = lines[name]
    while op in _PASSED_THROUGH:
        source = re.search(r"\S+\[[\d,]*\]\S* (\w+)", rest)
        if source is None:
            return False
        _, op, rest = lines[source[1]]
    return op == "parameter"


def _axes(text: str, name: str) -> list[int]:
    match = re.search(name + r"=\{([\d,]*)\}", text)
    return [int(axis) for axis in match[1].split(",") if axis] if match else []
