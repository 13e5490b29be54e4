"""Tables of what XLA for GPUs does with each primitive: fuse it, reduce it, update in place, call a library.

A primitive that is not listed is `opaque`: its inputs and outputs are materialised, which can only
raise the estimate.

- alias: the output is the input's storage (a bitcast)
- cheap: moves or repeats values; fused into any number of consumers
- arithmetic: elementwise; fused into several consumers when that moves no more bytes
- costly: elementwise, but expensive to recompute; fused into one consumer only
- reduce: reads fused inputs; its own output is materialised
- update: writes into its first operand if that is not needed afterwards
- dot: a matrix product; needs its operands in memory and may use workspace
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["alias", "cheap", "arithmetic", "costly", "reduce", "update", "dot", "opaque"]

CALLS = frozenset(
    {
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "remat2",
        "remat",
        "checkpoint",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "eval_jaxpr",
        "shard_map",
        "xla_pmap",
    }
)
LOOPS = frozenset({"scan", "while", "cond"})
# Library calls with their own scratch memory, which only XLA's analysis for the GPU includes.
SCRATCH = frozenset(
    {
        "conv_general_dilated",
        "fft",
        "sort",
        "top_k",
        "approx_top_k",
        "cholesky",
        "lu",
        "lu_pivots_to_permutation",
        "qr",
        "householder_product",
        "geqrf",
        "eigh",
        "eig",
        "svd",
        "schur",
        "triangular_solve",
        "tridiagonal_solve",
    }
)

_ALIAS = frozenset(
    {
        "reshape",
        "squeeze",
        "expand_dims",
        "stop_gradient",
        "optimization_barrier",
        "sharding_constraint",
        "name",
        "random_wrap",
        "random_unwrap",
        "to_edtype",
        "from_edtype",
        "device_put",
        "pvary",
        "mesh_cast",
        "reshard",
        "layout_constraint",
    }
)
_CHEAP = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "iota",
        "transpose",
        "rev",
        "tile",
        "empty",
        "empty2",
        "copy",
    }
)
_ARITHMETIC = frozenset(
    {
        "add",
        "add_any",
        "sub",
        "mul",
        "neg",
        "abs",
        "sign",
        "max",
        "min",
        "square",
        "integer_pow",
        "floor",
        "ceil",
        "round",
        "eq",
        "ne",
        "ge",
        "gt",
        "le",
        "lt",
        "eq_to",
        "le_to",
        "lt_to",
        "and",
        "or",
        "not",
        "xor",
        "select_n",
        "clamp",
        "is_finite",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "population_count",
        "clz",
        "mulhi",
        "real",
        "imag",
        "conj",
        "complex",
        "reduce_precision",
        "bitcast_convert_type",
        "nextafter",
    }
)
_COSTLY = frozenset(
    {
        "exp",
        "exp2",
        "log",
        "expm1",
        "log1p",
        "tanh",
        "logistic",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "sqrt",
        "rsqrt",
        "cbrt",
        "pow",
        "div",
        "rem",
        "erf",
        "erfc",
        "erf_inv",
        "lgamma",
        "digamma",
        "polygamma",
        "igamma",
        "igammac",
        "igamma_grad_a",
        "zeta",
        "bessel_i0e",
        "bessel_i1e",
        "regularized_incomplete_beta",
        "slice",
        "dynamic_slice",
        "gather",
        "pad",
        "concatenate",
        "stack",
        "unstack",
        "split",
    }
)
_REDUCE = frozenset(
    {
        "reduce_sum",
        "reduce_prod",
        "reduce_max",
        "reduce_min",
        "reduce_and",
        "reduce_or",
        "reduce_xor",
        "reduce",
        "argmax",
        "argmin",
    }
)
_UPDATE = frozenset(
    {
        "dynamic_update_slice",
        "scatter",
        "scatter-add",
        "scatter_add",
        "scatter_sub",
        "scatter-sub",
        "scatter_mul",
        "scatter-mul",
        "scatter_min",
        "scatter-min",
        "scatter_max",
        "scatter-max",
    }
)
_DOT = frozenset({"dot_general", "ragged_dot_general", "scaled_dot"})

_NAMES: dict[Kind, frozenset[str]] = {
    "alias": _ALIAS,
    "cheap": _CHEAP,
    "arithmetic": _ARITHMETIC,
    "costly": _COSTLY,
    "reduce": _REDUCE,
    "update": _UPDATE,
    "dot": _DOT,
}
_TABLE: dict[str, Kind] = {name: kind for kind, names in _NAMES.items() for name in names}

FUSED: tuple[Kind, ...] = ("cheap", "arithmetic", "costly")  # a producer that may be fused into its consumers
FUSING: tuple[Kind, ...] = (*FUSED, "reduce", "update")  # a consumer into which such a producer is fused


def kind_of(primitive: str) -> Kind:
    return _TABLE.get(primitive, "opaque")
