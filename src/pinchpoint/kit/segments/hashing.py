"""Counter-based random numbers: a 32-bit key for each index, computed from a draw's seed and purpose.

There is no generator and no state: the same (seed, step, rank, view) gives the same keys on a CPU and a GPU,
in any order, for any launch. The host computes two 32-bit words; the key of an index is a chain of invertible
steps, so that different indices never get the same key. `subset_triton` and `subset_cpu` contain compiled
copies of the chain; tests compare them with this one bit for bit. The keys are not cryptographically secure.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, int64

from pinchpoint.backends.torch import compat
from pinchpoint.core.errors import BadInput
from pinchpoint.kit.validation import whole_number

SPREAD = 0x9E3779B1  # odd factor that moves consecutive indices far apart
FIRST, SECOND, THIRD = 0xED5AD4BB, 0xAC4C1B51, 0x31848BAB  # odd factors of the three rounds
SHIFTS = (17, 11, 15, 14)
ONE = 2**32  # keys are integers in [0, ONE)

# The purpose of a draw is part of the words, so that the keys of points are independent of the numbers
# drawn for cells.
POINTS, COUNTS, RATIOS = 0, 1, 2

_MASK_32, _MASK_64 = 2**32 - 1, 2**64 - 1
# The chain in C++, for torch's compiler of elementwise kernels.
_PASS = f"""template <typename T> T key_in_cell(T index, T cell, T words) {{
    unsigned int x = (unsigned int)index * {SPREAD}u + (unsigned int)((unsigned long long)words >> 32);
    x = ((x ^ (x >> {SHIFTS[0]})) * {FIRST}u) ^ (unsigned int)words;
    x = (x ^ (x >> {SHIFTS[1]})) * {SECOND}u;
    x = (x ^ (x >> {SHIFTS[2]})) * {THIRD}u;
    return (T)(((unsigned long long)cell << 32) | (x ^ (x >> {SHIFTS[3]})));
}}"""


def words(
    *, seed: int, step: int = 0, rank: int = 0, view: int = 0, purpose: int = POINTS
) -> tuple[int, int]:
    """Two 32-bit words that identify this draw."""
    state = 0
    for value in (seed, step, rank, view, purpose):
        # Plain integers need no conversion; a draw on a GPU takes hardly longer than the general check.
        if type(value) is not int or not 0 <= value <= _MASK_64:
            parts = {"seed": seed, "step": step, "rank": rank, "view": view, "purpose": purpose}
            return words(**{name: _check_word(name, part) for name, part in parts.items()})
        # The final steps of SplitMix64.
        state = (state + 0x9E3779B97F4A7C15 ^ value) & _MASK_64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK_64
        state ^= state >> 31
    return state >> 32, state & _MASK_32


def keys(index: Tensor, of: tuple[int, int]) -> Tensor:
    """The keys of integers below 2**31, as int64 in [0, ONE); different integers have different keys."""
    if compat.one_pass(index):
        return keys_in(index.new_zeros(1), index, of)
    # Compute in 64 bits and mask to 32 after each product: shifting a non-negative number brings in zeros.
    x = index.to(int64) * SPREAD
    x.add_(of[0]).bitwise_and_(_MASK_32)
    x.bitwise_xor_(x >> SHIFTS[0]).mul_(FIRST).bitwise_and_(_MASK_32).bitwise_xor_(of[1])
    x.bitwise_xor_(x >> SHIFTS[1]).mul_(SECOND).bitwise_and_(_MASK_32)
    x.bitwise_xor_(x >> SHIFTS[2]).mul_(THIRD).bitwise_and_(_MASK_32)
    return x.bitwise_xor_(x >> SHIFTS[3])


def keys_in(cells: Tensor, index: Tensor, of: tuple[int, int]) -> Tensor:
    """Keys in the low 32 bits and cells in the high ones, as int64.

    cells, index: (N,) integers below 2**31.
    """
    if compat.one_pass(index):
        word = of[0] << 32 | of[1]
        words = index.new_full((1,), word - 2**64 if word >= 2**63 else word, dtype=int64)
        return compat.pass_over(_PASS, index, cells, words)
    return keys(index, of).bitwise_or_(cells.to(int64) << 32)


def key(index: int, of: tuple[int, int]) -> int:
    """The key of one index, on the host."""
    x = (index * SPREAD + of[0]) & _MASK_32
    x = ((x ^ x >> SHIFTS[0]) * FIRST & _MASK_32) ^ of[1]
    x = (x ^ x >> SHIFTS[1]) * SECOND & _MASK_32
    x = (x ^ x >> SHIFTS[2]) * THIRD & _MASK_32
    return x ^ x >> SHIFTS[3]


def signed(word: int) -> int:
    """The same 32 bits as a signed number, so that a kernel always receives an int32."""
    return word - ONE if word >= ONE // 2 else word


def _check_word(name: str, value: Any) -> int:
    number = whole_number(value)
    if number is None or not 0 <= number <= _MASK_64:
        raise BadInput(
            f"`{name}` is {value!r}, not a whole number from 0 to 2**64 - 1.",
            hint=f"Give a {name} such as 0 or 1.",
        )
    return number
