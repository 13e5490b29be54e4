"""Layers of networks: matrix products, convolutions, norms, attention, recurrence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from op_live import DTYPES, Case, Live, both_ways, function_case, module_case, tensor
from torch import Tensor, nn


def matrix_cases() -> Iterator[Case]:
    for name, dtype in DTYPES.items():
        yield Case(f"linear-{name}", module_case(lambda: nn.Linear(512, 768), 8192, 512, dtype=dtype))
        yield Case(
            f"linear-nobias-{name}",
            module_case(lambda: nn.Linear(512, 768, bias=False), 8192, 512, dtype=dtype),
        )
        yield Case(f"linear-3d-{name}", module_case(lambda: nn.Linear(512, 768), 8, 1024, 512, dtype=dtype))
        yield Case(f"matmul-{name}", function_case(torch.matmul, (2048, 512), (512, 1024), dtype=dtype))
        yield Case(f"bmm-{name}", function_case(torch.bmm, (32, 256, 128), (32, 128, 256), dtype=dtype))
        yield Case(
            f"einsum-{name}",
            function_case(
                lambda a, b: torch.einsum("bik,bjk->bij", a, b), (32, 256, 128), (32, 256, 128), dtype=dtype
            ),
        )
    yield Case("linear-narrow-out1-fp32", module_case(lambda: nn.Linear(256, 1), 262144, 256))
    yield Case("linear-narrow-in3-fp32", module_case(lambda: nn.Linear(3, 256), 262144, 3))
    yield Case("linear-tiny-fp32", module_case(lambda: nn.Linear(16, 16), 32, 16))
    yield Case(
        "addmm-gelu-fp32",
        function_case(lambda x, w, b: F.gelu(F.linear(x, w, b)), (8192, 512), (768, 512), (768,)),
    )
    yield Case(
        "linear-relu-fp32",
        function_case(lambda x, w, b: F.relu(F.linear(x, w, b)), (8192, 512), (768, 512), (768,)),
    )
    yield Case(
        "einsum-outer-fp32",
        function_case(lambda a, b: torch.einsum("zi,zj->zij", a, b), (65536, 16), (65536, 9)),
    )
    yield Case(
        "einsum-path3-fp32",
        function_case(
            lambda a, b, w: torch.einsum("zui,zj,zuv->zvij", a, b, w),
            (4096, 16, 3),
            (4096, 3),
            (4096, 16, 16),
        ),
    )
    yield Case("baddbmm-fp32", function_case(torch.baddbmm, (32, 256, 256), (32, 256, 128), (32, 128, 256)))
    yield Case("mv-fp32", function_case(torch.mv, (8192, 512), (512,)))

    def autocast(dtype: torch.dtype) -> Any:
        def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
            net = nn.Sequential(nn.Linear(512, 768), nn.ReLU(), nn.Linear(768, 512)).to(device)
            x = tensor(device, 8192, 512)

            def forward() -> Tensor:
                with torch.autocast(device, dtype=dtype):
                    return net(x)

            return forward, [x, *net.parameters()]

        return both_ways(make)

    yield Case("autocast-mlp-bf16", autocast(torch.bfloat16))
    yield Case("autocast-mlp-fp16", autocast(torch.float16))


def convolution_cases() -> Iterator[Case]:
    for name in ("fp32", "bf16"):
        dtype = DTYPES[name]
        for cin, cout in ((3, 64), (64, 64), (64, 128), (256, 256)):
            for last in (False, True):
                layout = "nhwc" if last else "nchw"
                yield Case(
                    f"conv2d-3x3-{cin}to{cout}-{layout}-{name}",
                    module_case(
                        lambda i=cin, o=cout: nn.Conv2d(i, o, 3, padding=1),
                        32,
                        cin,
                        56,
                        56,
                        dtype=dtype,
                        channels_last=last,
                    ),
                )
        yield Case(
            f"conv2d-1x1-64to256-{name}",
            module_case(lambda: nn.Conv2d(64, 256, 1), 32, 64, 56, 56, dtype=dtype),
        )
        yield Case(
            f"conv2d-7x7s2-3to64-{name}",
            module_case(lambda: nn.Conv2d(3, 64, 7, 2, 3), 32, 3, 112, 112, dtype=dtype),
        )
        yield Case(
            f"conv2d-3x3s2-64to128-{name}",
            module_case(lambda: nn.Conv2d(64, 128, 3, 2, 1), 32, 64, 56, 56, dtype=dtype),
        )
        yield Case(
            f"conv2d-depthwise-{name}",
            module_case(lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64), 32, 64, 56, 56, dtype=dtype),
        )
        yield Case(
            f"conv2d-groups4-{name}",
            module_case(lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4), 32, 64, 56, 56, dtype=dtype),
        )
        yield Case(
            f"conv2d-nobias-{name}",
            module_case(lambda: nn.Conv2d(64, 64, 3, padding=1, bias=False), 32, 64, 56, 56, dtype=dtype),
        )
        yield Case(
            f"conv1d-{name}", module_case(lambda: nn.Conv1d(64, 128, 5, padding=2), 32, 64, 2048, dtype=dtype)
        )
        yield Case(
            f"conv3d-16to32-{name}",
            module_case(lambda: nn.Conv3d(16, 32, 3, padding=1), 4, 16, 32, 32, 32, dtype=dtype),
        )
        yield Case(
            f"conv3d-1to16-{name}",
            module_case(lambda: nn.Conv3d(1, 16, 3, padding=1), 4, 1, 32, 32, 32, dtype=dtype),
        )
        yield Case(
            f"convT2d-128to64-{name}",
            module_case(lambda: nn.ConvTranspose2d(128, 64, 2, 2), 32, 128, 28, 28, dtype=dtype),
        )
        yield Case(
            f"convT3d-32to16-{name}",
            module_case(lambda: nn.ConvTranspose3d(32, 16, 2, 2), 4, 32, 16, 16, 16, dtype=dtype),
        )
    for batch in (8, 64, 128):
        yield Case(
            f"conv2d-3x3-64to64-batch{batch}-fp32",
            module_case(lambda: nn.Conv2d(64, 64, 3, padding=1), batch, 64, 56, 56),
        )
    for side in (28, 112):
        yield Case(
            f"conv2d-3x3-64to64-side{side}-fp32",
            module_case(lambda: nn.Conv2d(64, 64, 3, padding=1), 32, 64, side, side),
        )

    def benchmarked(device: str) -> Live:
        live = module_case(lambda: nn.Conv2d(64, 64, 3, padding=1), 32, 64, 56, 56)(device)

        def under(run: Callable[[], Any]) -> Callable[[], Any]:
            def wrapped() -> Any:
                with torch.backends.cudnn.flags(
                    enabled=True, benchmark=True, deterministic=False, allow_tf32=True
                ):
                    return run()

            return wrapped

        return Live([(name, under(run)) for name, run in live.stages], reset=live.reset)

    yield Case("conv2d-3x3-64to64-benchmark-fp32", benchmarked)


def norm_cases() -> Iterator[Case]:
    for name in ("fp32", "bf16"):
        dtype = DTYPES[name]
        yield Case(
            f"batch_norm2d-train-{name}", module_case(lambda: nn.BatchNorm2d(64), 32, 64, 56, 56, dtype=dtype)
        )
        yield Case(
            f"batch_norm2d-eval-{name}",
            module_case(lambda: nn.BatchNorm2d(64).eval(), 32, 64, 56, 56, dtype=dtype),
        )
        yield Case(
            f"batch_norm2d-nhwc-{name}",
            module_case(lambda: nn.BatchNorm2d(64), 32, 64, 56, 56, dtype=dtype, channels_last=True),
        )
        yield Case(f"batch_norm1d-{name}", module_case(lambda: nn.BatchNorm1d(256), 65536, 256, dtype=dtype))
        yield Case(f"layer_norm-{name}", module_case(lambda: nn.LayerNorm(512), 32768, 512, dtype=dtype))
        yield Case(f"rms_norm-{name}", module_case(lambda: nn.RMSNorm(512), 32768, 512, dtype=dtype))
        yield Case(
            f"group_norm-{name}", module_case(lambda: nn.GroupNorm(8, 64), 32, 64, 56, 56, dtype=dtype)
        )
        yield Case(
            f"instance_norm-{name}", module_case(lambda: nn.InstanceNorm2d(64), 32, 64, 56, 56, dtype=dtype)
        )
        yield Case(f"softmax-{name}", function_case(lambda x: F.softmax(x, -1), (8192, 4096), dtype=dtype))
        yield Case(
            f"log_softmax-{name}", function_case(lambda x: F.log_softmax(x, -1), (8192, 4096), dtype=dtype)
        )
    for width in (64, 1024):
        yield Case(
            f"layer_norm-width{width}-fp32", module_case(lambda w=width: nn.LayerNorm(w), 32768, width)
        )
    for rows in (512, 262144):
        yield Case(f"layer_norm-rows{rows}-fp32", module_case(lambda: nn.LayerNorm(256), rows, 256))


def _attention_choices() -> Iterator[Case]:
    """What decides the kernel besides the type: masks and their strides, widths, layouts, shared heads."""

    def attention(
        dtype: torch.dtype,
        *,
        mask: str | None = None,
        rows: int = 512,
        columns: int = 512,
        dim: int = 64,
        value_dim: int | None = None,
        heads: int = 8,
        shared: int | None = None,
        dropout: float = 0.0,
        causal: bool = False,
        layout: str = "usual",
    ) -> Any:
        def build(device: str) -> Live:
            q = tensor(device, 4, heads, rows, dim, dtype=dtype)
            k = tensor(device, 4, shared or heads, columns, dim, dtype=dtype)
            v = tensor(device, 4, shared or heads, columns, value_dim or dim, dtype=dtype)
            leaves = [q, k, v]
            bias: Tensor | None = None
            if mask == "learned":
                bias = tensor(device, 1, heads, rows, columns, dtype=dtype)
                leaves.append(bias)
            elif mask == "learned-permuted":  # as relative position biases are made from an embedding
                table = tensor(device, rows, columns, heads, dtype=dtype)
                leaves.append(table)
                bias = table.permute(2, 0, 1)[None]
            elif mask == "permuted":
                bias = torch.zeros(rows, columns, heads, dtype=dtype, device=device).permute(2, 0, 1)[None]
            elif mask == "bool-heads":
                bias = torch.ones(4, heads, rows, columns, dtype=torch.bool, device=device)
            if layout == "three":
                q, k, v = (t.flatten(0, 1) for t in (q, k, v))
            elif layout == "strided":
                q, k, v = (
                    t.transpose(-2, -1).contiguous().transpose(-2, -1).detach().requires_grad_()
                    for t in (q, k, v)
                )
                leaves = [q, k, v]
            how = {
                "attn_mask": bias,
                "dropout_p": dropout,
                "is_causal": causal,
                "enable_gqa": shared is not None,
            }

            def forward() -> Tensor:
                return F.scaled_dot_product_attention(q, k, v, **how)

            live = both_ways(lambda _: (forward, leaves))(device)
            choice = torch.ops.aten._fused_sdp_choice(q, k, v, **how)
            live.notes["backend"] = torch.nn.attention.SDPBackend(choice).name
            return live

        return build

    for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16}.items():
        for mask in ("learned", "learned-permuted", "permuted", "bool-heads"):
            yield Case(f"sdpa-choice-{name}-mask-{mask}", attention(dtype, mask=mask))
        yield Case(f"sdpa-choice-{name}-permuted-dropout", attention(dtype, mask="permuted", dropout=0.1))
        yield Case(f"sdpa-choice-{name}-learned-odd", attention(dtype, mask="learned", columns=500))
        for dim in (36, 100, 192, 256, 320):
            yield Case(f"sdpa-choice-{name}-dim{dim}", attention(dtype, dim=dim))
        yield Case(f"sdpa-choice-{name}-values-128", attention(dtype, value_dim=128))
        yield Case(f"sdpa-choice-{name}-cross-causal", attention(dtype, rows=256, causal=True))
        yield Case(f"sdpa-choice-{name}-one-column", attention(dtype, columns=1, rows=4096))
        yield Case(f"sdpa-choice-{name}-shared-heads", attention(dtype, shared=2))
        yield Case(f"sdpa-choice-{name}-three", attention(dtype, layout="three"))
        yield Case(f"sdpa-choice-{name}-strided", attention(dtype, layout="strided"))
    yield Case("sdpa-choice-fp64", attention(torch.float64))


def attention_cases() -> Iterator[Case]:
    def attention(
        batch: int,
        heads: int,
        seq: int,
        dim: int,
        dtype: torch.dtype,
        mask: str | None,
        causal: bool,
        dropout: float,
    ) -> Any:
        def build(device: str) -> Live:
            q, k, v = (tensor(device, batch, heads, seq, dim, dtype=dtype) for _ in range(3))
            bias: Tensor | None = None
            if mask == "bool":
                bias = torch.ones(seq, seq, dtype=torch.bool, device=device).tril()
            elif mask == "float":
                bias = torch.zeros(seq, seq, dtype=dtype, device=device)
            elif mask == "padding":
                bias = torch.ones(batch, 1, 1, seq, dtype=torch.bool, device=device)

            def forward() -> Tensor:
                return F.scaled_dot_product_attention(
                    q, k, v, attn_mask=bias, is_causal=causal, dropout_p=dropout
                )

            live = both_ways(lambda _: (forward, [q, k, v]))(device)
            choice = torch.ops.aten._fused_sdp_choice(
                q, k, v, attn_mask=bias, is_causal=causal, dropout_p=dropout
            )
            live.notes["backend"] = torch.nn.attention.SDPBackend(choice).name
            return live

        return build

    for seq in (512, 4096):
        for dim in (32, 64, 128):
            for name, dtype in DTYPES.items():
                yield Case(
                    f"sdpa-{name}-seq{seq}-dim{dim}", attention(4, 8, seq, dim, dtype, None, False, 0.0)
                )
        for name, dtype in DTYPES.items():
            for mask in ("bool", "float", "padding"):
                yield Case(
                    f"sdpa-{name}-seq{seq}-dim64-mask-{mask}",
                    attention(4, 8, seq, 64, dtype, mask, False, 0.0),
                )
            yield Case(f"sdpa-{name}-seq{seq}-dim64-causal", attention(4, 8, seq, 64, dtype, None, True, 0.0))
            yield Case(
                f"sdpa-{name}-seq{seq}-dim64-dropout", attention(4, 8, seq, 64, dtype, None, False, 0.1)
            )
    for name, dtype in DTYPES.items():
        yield Case(f"sdpa-{name}-seq197-dim64", attention(32, 12, 197, 64, dtype, None, False, 0.0))
        yield Case(
            f"sdpa-{name}-seq197-dim64-mask-padding", attention(32, 12, 197, 64, dtype, "padding", False, 0.0)
        )
        yield Case(f"sdpa-{name}-seq1000-dim80", attention(4, 8, 1000, 80, dtype, None, False, 0.0))

    yield from _attention_choices()

    def multihead(dtype: torch.dtype, need_weights: bool) -> Any:
        def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
            net = nn.MultiheadAttention(512, 8, batch_first=True).to(device, dtype)
            x = tensor(device, 16, 512, 512, dtype=dtype)
            return lambda: net(x, x, x, need_weights=need_weights)[0], [x, *net.parameters()]

        return both_ways(make)

    yield Case("multihead-weights-fp32", multihead(torch.float32, True))
    yield Case("multihead-noweights-fp32", multihead(torch.float32, False))
    yield Case("multihead-noweights-bf16", multihead(torch.bfloat16, False))


def recurrent_cases() -> Iterator[Case]:
    for name in ("fp32", "bf16"):
        for batch, seq, width in ((32, 128, 256), (64, 512, 512), (256, 64, 128)):
            for kind in (nn.LSTM, nn.GRU, nn.RNN):
                yield Case(
                    f"{kind.__name__.lower()}-b{batch}-t{seq}-h{width}-{name}",
                    module_case(
                        lambda k=kind, w=width: k(w, w, 2, batch_first=True),
                        batch,
                        seq,
                        width,
                        dtype=DTYPES[name],
                    ),
                )
    options: dict[str, dict[str, Any]] = {
        "one-layer": {"num_layers": 1},
        "bidirectional": {"bidirectional": True},
        "dropout": {"dropout": 0.1},
        "narrow-in": {},
    }
    for name, extra in options.items():
        wide = 64 if name == "narrow-in" else 512
        yield Case(
            f"lstm-{name}-b64-t512-h512-fp32",
            module_case(
                lambda w=wide, e=extra: nn.LSTM(w, 512, **{"num_layers": 2, "batch_first": True, **e}),
                64,
                512,
                wide,
            ),
        )
    yield Case("lstm-seqfirst-b64-t512-h512-fp32", module_case(lambda: nn.LSTM(512, 512, 2), 512, 64, 512))
    yield Case("lstmcell-fp32", module_case(lambda: nn.LSTMCell(512, 512), 4096, 512))
    yield Case("grucell-fp32", module_case(lambda: nn.GRUCell(512, 512), 4096, 512))
