"""Fill the local memory of a GPU, so that a kernel that reads it before it writes it is wrong each time.

A kernel keeps there what does not fit its registers, and finds what an earlier kernel left. If a compiler
loads a number before it is stored, it may be the right one because the same kernel ran before.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton  # ty: ignore
import triton.language as tl

_THREADS = 128
_PROGRAMS = 64  # per multiprocessor: more than run at once, so that each of its threads is filled


@triton.jit
def _fill(out, THREADS: tl.constexpr):
    """Write -1 (no number as a float, no address) to 4 KiB of each thread, more than the kernels take."""
    word = tl.inline_asm_elementwise(
        """
        {
            .local .align 8 .b8 filled[4096];
            .reg .b64 place;
            .reg .b32 left;
            .reg .pred more;
            mov.u64 place, filled;
            cvta.local.u64 place, place;
            mov.b32 left, 1024;
        FILL:
            st.volatile.b32 [place], $1;
            add.u64 place, place, 4;
            sub.u32 left, left, 1;
            setp.ne.u32 more, left, 0;
            @more bra FILL;
            mov.b32 $0, $1;
        }
        """,
        "=&r,r",
        [tl.full((THREADS,), -1, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(out + tl.arange(0, THREADS), word)


def fill_local_memory(device: torch.device) -> None:
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    out = torch.empty(_THREADS, dtype=torch.int32, device=device)
    _fill[(_PROGRAMS * processors,)](out, _THREADS, num_warps=_THREADS // 32)
