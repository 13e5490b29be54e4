"""The operations `op_probe.py` looks at: each builds its inputs once and gives stages to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Stage = tuple[str, Callable[[], Any]]


@dataclass
class Live:
    """An operation with its inputs on the device. `reset` puts it back before the first stage."""

    stages: list[Stage]
    reset: Callable[[], None] = lambda: None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[str], Live]


def once(make: Callable[[str], Callable[[], Any]]) -> Callable[[str], Live]:
    """A case of one stage; what the call returns stays alive until the stage's figures are read."""

    def build(device: str) -> Live:
        call = make(device)
        held: list[Any] = []

        def run() -> None:
            held.append(call())

        return Live([("call", run)], reset=held.clear)

    return build


def both_ways(make: Callable[[str], tuple[Callable[[], Tensor], list[Tensor]]]) -> Callable[[str], Live]:
    """Forward, then backward with a gradient made beforehand; gradients are dropped at every reset."""

    def build(device: str) -> Live:
        forward, wanted = make(device)
        held: dict[str, Tensor] = {}
        with torch.no_grad():
            gradient = torch.ones_like(forward())

        def run_forward() -> None:
            held["y"] = forward()

        def run_backward() -> None:
            held.pop("y").backward(gradient)

        def reset() -> None:
            held.clear()
            for tensor in wanted:
                tensor.grad = None

        return Live([("forward", run_forward), ("backward", run_backward)], reset=reset)

    return build


def tensor(device: str, *shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(*shape, device=device, dtype=dtype).requires_grad_(grad)


def indices(device: str, count: int, below: int) -> Tensor:
    return torch.randint(below, (count,), device=device)


def module_case(
    module: Callable[[], nn.Module], *shape: int, dtype: torch.dtype = torch.float32, channels_last: bool = False
) -> Any:
    def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
        net = module().to(device, dtype)
        x = torch.randn(*shape, device=device, dtype=dtype)
        if channels_last:
            net = net.to(memory_format=torch.channels_last)
            x = x.to(memory_format=torch.channels_last)
        x.requires_grad_()

        def forward() -> Tensor:
            y = net(x)
            return y[0] if isinstance(y, tuple) else y

        return forward, [x, *net.parameters()]

    return both_ways(make)


def function_case(function: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
        inputs = [tensor(device, *shape, dtype=dtype) for shape in shapes]
        return lambda: function(*inputs), inputs

    return both_ways(make)


def call_case(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    def make(device: str) -> Callable[[], Any]:
        inputs = [tensor(device, *shape, dtype=dtype, grad=False) for shape in shapes]
        return lambda: function(*inputs)

    return once(make)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def matrix_cases() -> Iterator[Case]:
    for name, dtype in DTYPES.items():
        yield Case(f"linear-{name}", module_case(lambda: nn.Linear(512, 768), 8192, 512, dtype=dtype))
        yield Case(f"linear-nobias-{name}", module_case(lambda: nn.Linear(512, 768, bias=False), 8192, 512, dtype=dtype))
        yield Case(f"linear-3d-{name}", module_case(lambda: nn.Linear(512, 768), 8, 1024, 512, dtype=dtype))
        yield Case(f"matmul-{name}", function_case(torch.matmul, (2048, 512), (512, 1024), dtype=dtype))
        yield Case(f"bmm-{name}", function_case(torch.bmm, (32, 256, 128), (32, 128, 256), dtype=dtype))
        yield Case(
            f"einsum-{name}",
            function_case(lambda a, b: torch.einsum("bik,bjk->bij", a, b), (32, 256, 128), (32, 256, 128), dtype=dtype),
        )
    yield Case("linear-narrow-out1-fp32", module_case(lambda: nn.Linear(256, 1), 262144, 256))
    yield Case("linear-narrow-in3-fp32", module_case(lambda: nn.Linear(3, 256), 262144, 3))
    yield Case("linear-tiny-fp32", module_case(lambda: nn.Linear(16, 16), 32, 16))
    yield Case("addmm-gelu-fp32", function_case(lambda x, w, b: F.gelu(F.linear(x, w, b)), (8192, 512), (768, 512), (768,)))
    yield Case("linear-relu-fp32", function_case(lambda x, w, b: F.relu(F.linear(x, w, b)), (8192, 512), (768, 512), (768,)))
    yield Case("einsum-outer-fp32", function_case(lambda a, b: torch.einsum("zi,zj->zij", a, b), (65536, 16), (65536, 9)))
    yield Case(
        "einsum-path3-fp32",
        function_case(lambda a, b, w: torch.einsum("zui,zj,zuv->zvij", a, b, w), (4096, 16, 3), (4096, 3), (4096, 16, 16)),
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
                        lambda i=cin, o=cout: nn.Conv2d(i, o, 3, padding=1), 32, cin, 56, 56, dtype=dtype, channels_last=last
                    ),
                )
        yield Case(f"conv2d-1x1-64to256-{name}", module_case(lambda: nn.Conv2d(64, 256, 1), 32, 64, 56, 56, dtype=dtype))
        yield Case(f"conv2d-7x7s2-3to64-{name}", module_case(lambda: nn.Conv2d(3, 64, 7, 2, 3), 32, 3, 112, 112, dtype=dtype))
        yield Case(f"conv2d-3x3s2-64to128-{name}", module_case(lambda: nn.Conv2d(64, 128, 3, 2, 1), 32, 64, 56, 56, dtype=dtype))
        yield Case(
            f"conv2d-depthwise-{name}",
            module_case(lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64), 32, 64, 56, 56, dtype=dtype),
        )
        yield Case(
            f"conv2d-groups4-{name}", module_case(lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4), 32, 64, 56, 56, dtype=dtype)
        )
        yield Case(
            f"conv2d-nobias-{name}", module_case(lambda: nn.Conv2d(64, 64, 3, padding=1, bias=False), 32, 64, 56, 56, dtype=dtype)
        )
        yield Case(f"conv1d-{name}", module_case(lambda: nn.Conv1d(64, 128, 5, padding=2), 32, 64, 2048, dtype=dtype))
        yield Case(f"conv3d-16to32-{name}", module_case(lambda: nn.Conv3d(16, 32, 3, padding=1), 4, 16, 32, 32, 32, dtype=dtype))
        yield Case(f"conv3d-1to16-{name}", module_case(lambda: nn.Conv3d(1, 16, 3, padding=1), 4, 1, 32, 32, 32, dtype=dtype))
        yield Case(
            f"convT2d-128to64-{name}", module_case(lambda: nn.ConvTranspose2d(128, 64, 2, 2), 32, 128, 28, 28, dtype=dtype)
        )
        yield Case(
            f"convT3d-32to16-{name}", module_case(lambda: nn.ConvTranspose3d(32, 16, 2, 2), 4, 32, 16, 16, 16, dtype=dtype)
        )
    for batch in (8, 64, 128):
        yield Case(
            f"conv2d-3x3-64to64-batch{batch}-fp32", module_case(lambda: nn.Conv2d(64, 64, 3, padding=1), batch, 64, 56, 56)
        )
    for side in (28, 112):
        yield Case(f"conv2d-3x3-64to64-side{side}-fp32", module_case(lambda: nn.Conv2d(64, 64, 3, padding=1), 32, 64, side, side))

    def benchmarked(device: str) -> Live:
        live = module_case(lambda: nn.Conv2d(64, 64, 3, padding=1), 32, 64, 56, 56)(device)

        def under(run: Callable[[], Any]) -> Callable[[], Any]:
            def wrapped() -> Any:
                with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True):
                    return run()

            return wrapped

        return Live([(name, under(run)) for name, run in live.stages], reset=live.reset)

    yield Case("conv2d-3x3-64to64-benchmark-fp32", benchmarked)


def norm_cases() -> Iterator[Case]:
    for name in ("fp32", "bf16"):
        dtype = DTYPES[name]
        yield Case(f"batch_norm2d-train-{name}", module_case(lambda: nn.BatchNorm2d(64), 32, 64, 56, 56, dtype=dtype))
        yield Case(f"batch_norm2d-eval-{name}", module_case(lambda: nn.BatchNorm2d(64).eval(), 32, 64, 56, 56, dtype=dtype))
        yield Case(
            f"batch_norm2d-nhwc-{name}", module_case(lambda: nn.BatchNorm2d(64), 32, 64, 56, 56, dtype=dtype, channels_last=True)
        )
        yield Case(f"batch_norm1d-{name}", module_case(lambda: nn.BatchNorm1d(256), 65536, 256, dtype=dtype))
        yield Case(f"layer_norm-{name}", module_case(lambda: nn.LayerNorm(512), 32768, 512, dtype=dtype))
        yield Case(f"rms_norm-{name}", module_case(lambda: nn.RMSNorm(512), 32768, 512, dtype=dtype))
        yield Case(f"group_norm-{name}", module_case(lambda: nn.GroupNorm(8, 64), 32, 64, 56, 56, dtype=dtype))
        yield Case(f"instance_norm-{name}", module_case(lambda: nn.InstanceNorm2d(64), 32, 64, 56, 56, dtype=dtype))
        yield Case(f"softmax-{name}", function_case(lambda x: F.softmax(x, -1), (8192, 4096), dtype=dtype))
        yield Case(f"log_softmax-{name}", function_case(lambda x: F.log_softmax(x, -1), (8192, 4096), dtype=dtype))
    for width in (64, 1024):
        yield Case(f"layer_norm-width{width}-fp32", module_case(lambda w=width: nn.LayerNorm(w), 32768, width))
    for rows in (512, 262144):
        yield Case(f"layer_norm-rows{rows}-fp32", module_case(lambda: nn.LayerNorm(256), rows, 256))


def loss_cases() -> Iterator[Case]:
    def labelled(make_loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.float32) -> Any:
        def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
            x = tensor(device, 8192, 4096, dtype=dtype)
            labels = indices(device, 8192, 4096)
            return lambda: make_loss(x, labels), [x]

        return both_ways(make)

    yield Case("cross_entropy-fp32", labelled(F.cross_entropy))
    yield Case("cross_entropy-bf16", labelled(F.cross_entropy, torch.bfloat16))
    yield Case("cross_entropy-smooth-fp32", labelled(lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1)))
    big = (4096, 8192)
    yield Case("mse_loss-fp32", function_case(F.mse_loss, big, big))
    yield Case("smooth_l1_loss-fp32", function_case(F.smooth_l1_loss, big, big))
    yield Case("bce_logits-fp32", function_case(lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)), big))
    for name, dtype in DTYPES.items():
        yield Case(f"sum-{name}", function_case(torch.sum, big, dtype=dtype))
        yield Case(f"mean-{name}", function_case(torch.mean, big, dtype=dtype))
    yield Case("norm-fp32", function_case(torch.linalg.vector_norm, big))
    yield Case("norm-rows-fp32", function_case(lambda x: x.norm(dim=-1), (262144, 3)))
    yield Case("sum-rows-fp32", function_case(lambda x: x.sum(-1), big))
    yield Case("sum-columns-fp32", function_case(lambda x: x.sum(0), big))
    yield Case("sum-columns-tall-fp32", function_case(lambda x: x.sum(0), (1_000_000, 64)))
    yield Case("max-fp32", function_case(torch.max, big))
    yield Case("max-rows-fp32", function_case(lambda x: x.max(-1).values, big))
    yield Case("argmax-fp32", call_case(torch.argmax, big))
    yield Case("var-fp32", function_case(torch.var, big))
    yield Case("std-rows-fp32", function_case(lambda x: x.std(-1), big))
    yield Case("logsumexp-fp32", function_case(lambda x: x.logsumexp(-1), big))
    yield Case("all-finite-fp32", call_case(lambda x: torch.isfinite(x).all(), big))
    yield Case("any-fp32", call_case(lambda x: (x > 0).any(), big))


def pointwise_cases() -> Iterator[Case]:
    big = (4096, 8192)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "softplus": F.softplus,
        "sin": torch.sin, "exp": torch.exp, "pow2": lambda x: x**2, "dropout": F.dropout, "leaky_relu": F.leaky_relu,
        "clamp": lambda x: x.clamp(-1, 1), "where": lambda x: torch.where(x > 0, x, -x), "cat": lambda x: torch.cat([x, x]),
        "stack": lambda x: torch.stack([x, x]), "pad": lambda x: F.pad(x, (1, 1)), "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
        "contiguous-transpose": lambda x: x.t().contiguous(), "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1, 0),
    }  # fmt: skip
    for name, function in functions.items():
        yield Case(f"{name}-fp32", function_case(function, big))
    yield Case("dropout-bf16", function_case(F.dropout, big, dtype=torch.bfloat16))
    yield Case("cast-to-bf16", function_case(lambda x: x.bfloat16(), big))
    yield Case("broadcast-mul-fp32", function_case(torch.mul, big, (4096, 1)))
    yield Case("broadcast-add-row-fp32", function_case(torch.add, big, (8192,)))
    yield Case("expand-sub-pairs-fp32", function_case(lambda a, b: a[:, None] - b[None], (2048, 3), (2048, 3)))


def index_cases() -> Iterator[Case]:
    rows, width, count = 65536, 64, 262144

    def gathered(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Any:
        """`function(x (rows, width), m (count, width), index (count,))`"""

        def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
            x, m, index = tensor(device, rows, width), tensor(device, count, width), indices(device, count, rows)
            return lambda: function(x, m, index), [x, m]

        return both_ways(make)

    yield Case("index-rows", gathered(lambda x, m, i: x[i]))
    yield Case("index_select", gathered(lambda x, m, i: x.index_select(0, i)))
    yield Case("gather", gathered(lambda x, m, i: x.gather(0, i[:, None].expand(-1, width))))
    yield Case("take_along_dim", gathered(lambda x, m, i: torch.take_along_dim(x, i[:, None], 0)))
    yield Case("index_add", gathered(lambda x, m, i: torch.zeros_like(x).index_add(0, i, m)))
    yield Case("index_add-inplace", gathered(lambda x, m, i: torch.zeros_like(x).index_add_(0, i, m)))
    yield Case("scatter_add", gathered(lambda x, m, i: torch.zeros_like(x).scatter_add(0, i[:, None].expand(-1, width), m)))
    for reduce in ("sum", "mean", "amax"):
        yield Case(
            f"scatter_reduce-{reduce}",
            gathered(lambda x, m, i, r=reduce: torch.zeros_like(x).scatter_reduce(0, i[:, None].expand(-1, width), m, r)),
        )
    yield Case("index_put-accumulate", gathered(lambda x, m, i: torch.zeros_like(x).index_put((i,), m, accumulate=True)))
    yield Case("index_put", gathered(lambda x, m, i: torch.zeros_like(x).index_put((i,), m)))
    yield Case("embedding", gathered(lambda x, m, i: F.embedding(i, x)))
    yield Case("index-pairs", gathered(lambda x, m, i: x[i, i % width]))

    def embedding(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
        net = nn.Embedding(50257, 512, device=device)
        tokens = torch.randint(50257, (16, 1024), device=device)
        return lambda: net(tokens), list(net.parameters())

    yield Case("embedding-vocabulary", both_ways(embedding))
    yield Case("mask-select", function_case(lambda x: x[x[:, 0] > 0], (262144, 64)))
    yield Case("mask-select-elements", function_case(lambda x: x[x > 0], (4096, 4096)))
    yield Case("masked_select", function_case(lambda x: x.masked_select(x > 0), (4096, 4096)))
    yield Case("masked_scatter", function_case(lambda x: torch.zeros_like(x).masked_scatter(x > 0, x), (4096, 4096)))
    yield Case("nonzero", call_case(lambda x: (x > 0).nonzero(), (4096, 4096)))
    yield Case("nonzero-rows", call_case(lambda x: (x > 0).nonzero(), (1_000_000,)))
    yield Case("sort", call_case(torch.sort, (1_000_000,)))
    yield Case("sort-rows", function_case(lambda x: x.sort(-1).values, (4096, 4096)))
    yield Case("sort-stable", call_case(lambda x: x.sort(stable=True), (1_000_000,)))
    yield Case("argsort", call_case(torch.argsort, (1_000_000,)))
    yield Case("argsort-rows", call_case(torch.argsort, (4096, 4096)))
    yield Case("topk-rows", function_case(lambda x: x.topk(16, -1).values, (4096, 4096)))
    yield Case("topk-flat", call_case(lambda x: x.topk(1000), (1_000_000,)))
    yield Case("cumsum-flat", function_case(lambda x: x.cumsum(0), (16_000_000,)))
    yield Case("cumsum-rows", function_case(lambda x: x.cumsum(-1), (65536, 192)))
    yield Case("cumprod-rows", function_case(lambda x: x.cumprod(-1), (65536, 192)))
    yield Case("searchsorted", call_case(lambda x, y: torch.searchsorted(x.sort(-1).values, y), (65536, 128), (65536, 128)))
    yield Case("multinomial", call_case(lambda x: torch.multinomial(x.abs(), 4), (4096, 4096)))
    yield Case("randperm", once(lambda device: lambda: torch.randperm(1_000_000, device=device)))
    for count in (1_000_000, 16_000_000):
        yield Case(
            f"unique-{count}", once(lambda device, n=count: (lambda x: lambda: torch.unique(x))(indices(device, n, 10_000)))
        )
    yield Case(
        "unique-inverse",
        once(
            lambda device: (lambda x: lambda: torch.unique(x, return_inverse=True, return_counts=True))(
                indices(device, 1_000_000, 10_000)
            )
        ),
    )
    yield Case(
        "unique-rows",
        once(lambda device: (lambda x: lambda: torch.unique(x, dim=0))(torch.randint(9, (100_000, 3), device=device))),
    )
    yield Case(
        "bincount",
        once(lambda device: (lambda x: lambda: torch.bincount(x, minlength=10_000))(indices(device, 1_000_000, 10_000))),
    )
    yield Case("one_hot", once(lambda device: (lambda x: lambda: F.one_hot(x, 100))(indices(device, 100_000, 100))))
    yield Case("histc", call_case(lambda x: torch.histc(x, 100), (1_000_000,)))
    yield Case(
        "repeat_interleave-counts",
        once(
            lambda device: (lambda x, n: lambda: x.repeat_interleave(n, 0))(
                tensor(device, 65536, 64, grad=False), indices(device, 65536, 8)
            )
        ),
    )
    yield Case("repeat_interleave-int", function_case(lambda x: x.repeat_interleave(4, 0), (65536, 64)))


def attention_cases() -> Iterator[Case]:
    def attention(
        batch: int, heads: int, seq: int, dim: int, dtype: torch.dtype, mask: str | None, causal: bool, dropout: float
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
                return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, dropout_p=dropout)

            live = both_ways(lambda _: (forward, [q, k, v]))(device)
            choice = torch._fused_sdp_choice(q, k, v, attn_mask=bias, is_causal=causal, dropout_p=dropout)
            live.notes["backend"] = torch.nn.attention.SDPBackend(choice).name
            return live

        return build

    for seq in (512, 4096):
        for dim in (32, 64, 128):
            for name, dtype in DTYPES.items():
                yield Case(f"sdpa-{name}-seq{seq}-dim{dim}", attention(4, 8, seq, dim, dtype, None, False, 0.0))
        for name, dtype in DTYPES.items():
            for mask in ("bool", "float", "padding"):
                yield Case(f"sdpa-{name}-seq{seq}-dim64-mask-{mask}", attention(4, 8, seq, 64, dtype, mask, False, 0.0))
            yield Case(f"sdpa-{name}-seq{seq}-dim64-causal", attention(4, 8, seq, 64, dtype, None, True, 0.0))
            yield Case(f"sdpa-{name}-seq{seq}-dim64-dropout", attention(4, 8, seq, 64, dtype, None, False, 0.1))
    for name, dtype in DTYPES.items():
        yield Case(f"sdpa-{name}-seq197-dim64", attention(32, 12, 197, 64, dtype, None, False, 0.0))
        yield Case(f"sdpa-{name}-seq197-dim64-mask-padding", attention(32, 12, 197, 64, dtype, "padding", False, 0.0))
        yield Case(f"sdpa-{name}-seq1000-dim80", attention(4, 8, 1000, 80, dtype, None, False, 0.0))

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
                    module_case(lambda k=kind, w=width: k(w, w, 2, batch_first=True), batch, seq, width, dtype=DTYPES[name]),
                )
    options: dict[str, dict[str, Any]] = {
        "one-layer": {"num_layers": 1}, "bidirectional": {"bidirectional": True}, "dropout": {"dropout": 0.1}, "narrow-in": {},
    }  # fmt: skip
    for name, extra in options.items():
        wide = 64 if name == "narrow-in" else 512
        yield Case(
            f"lstm-{name}-b64-t512-h512-fp32",
            module_case(lambda w=wide, e=extra: nn.LSTM(w, 512, **{"num_layers": 2, "batch_first": True, **e}), 64, 512, wide),
        )
    yield Case("lstm-seqfirst-b64-t512-h512-fp32", module_case(lambda: nn.LSTM(512, 512, 2), 512, 64, 512))
    yield Case("lstmcell-fp32", module_case(lambda: nn.LSTMCell(512, 512), 4096, 512))
    yield Case("grucell-fp32", module_case(lambda: nn.GRUCell(512, 512), 4096, 512))


def image_cases() -> Iterator[Case]:
    image = (16, 64, 64, 64)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "upsample-bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "upsample-nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        "upsample-bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        "max_pool2d": lambda x: F.max_pool2d(x, 2),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
        "adaptive_avg_pool2d-7": lambda x: F.adaptive_avg_pool2d(x, 7),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "unfold": lambda x: F.unfold(x, 3, padding=1),
        "fft2": lambda x: torch.fft.fft2(x).abs(),
        "rfft2-irfft2": lambda x: torch.fft.irfft2(torch.fft.rfft2(x)),
    }
    for name, function in functions.items():
        yield Case(f"{name}-fp32", function_case(function, image))
    grid = (16, 64, 64, 2)
    yield Case("grid_sample-fp32", function_case(lambda x, g: F.grid_sample(x, g, align_corners=False), image, grid))
    yield Case(
        "grid_sample-3d-fp32",
        function_case(lambda x, g: F.grid_sample(x, g, align_corners=False), (1, 16, 64, 64, 64), (1, 1, 1, 262144, 3)),
    )
    yield Case("fft-1d-fp32", function_case(lambda x: torch.fft.rfft(x).abs(), (1024, 16384)))
    yield Case("max_pool3d-fp32", function_case(lambda x: F.max_pool3d(x, 2), (4, 16, 32, 32, 32)))


def geometry_cases() -> Iterator[Case]:
    def spd(x: Tensor) -> Tensor:
        return x @ x.mT + x.shape[-1] * torch.eye(x.shape[-1], device=x.device)

    yield Case("cdist-fp32", function_case(torch.cdist, (4096, 64), (4096, 64)))
    yield Case("cdist-batched-fp32", function_case(torch.cdist, (8, 1024, 3), (8, 1024, 3)))
    yield Case(
        "cdist-exact-fp32",
        function_case(lambda a, b: torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist"), (4096, 3), (4096, 3)),
    )
    yield Case("cholesky-fp32", function_case(lambda x: torch.linalg.cholesky(spd(x)), (1024, 1024)))
    yield Case("cholesky-batched-fp32", function_case(lambda x: torch.linalg.cholesky(spd(x)), (256, 64, 64)))
    yield Case("solve-fp32", function_case(lambda x, b: torch.linalg.solve(spd(x), b), (1024, 1024), (1024, 16)))
    yield Case("inv-batched-fp32", function_case(lambda x: torch.linalg.inv(spd(x)), (4096, 3, 3)))
    yield Case("det-batched-fp32", function_case(lambda x: torch.linalg.det(x), (4096, 16, 16)))
    yield Case("slogdet-fp32", function_case(lambda x: torch.linalg.slogdet(x).logabsdet, (1024, 1024)))
    yield Case("eigh-fp32", function_case(lambda x: torch.linalg.eigvalsh(spd(x)), (512, 512)))
    yield Case("eigh-batched-fp32", function_case(lambda x: torch.linalg.eigvalsh(spd(x)), (4096, 3, 3)))
    yield Case("svd-fp32", function_case(torch.linalg.svdvals, (512, 512)))
    yield Case("svd-batched-fp32", function_case(torch.linalg.svdvals, (4096, 3, 3)))
    yield Case("qr-fp32", call_case(torch.linalg.qr, (1024, 512)))
    yield Case("cross-fp32", function_case(lambda a, b: torch.linalg.cross(a, b), (262144, 3), (262144, 3)))
    yield Case("normalize-fp32", function_case(lambda x: F.normalize(x, dim=-1), (262144, 64)))


def optimizer_cases() -> Iterator[Case]:
    def shapes() -> list[tuple[int, ...]]:
        return [(1024, 1024), (1024,)] * 10

    def optimizer(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Any:
        def build(device: str) -> Live:
            params = [nn.Parameter(torch.randn(*shape, device=device)) for shape in shapes()]
            for p in params:
                p.grad = torch.randn_like(p)
            stepper = make(params)
            return Live([("step", lambda: stepper.step())])

        return build

    kinds: dict[str, type[Any]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    for name, kind in kinds.items():
        for how, flags in {
            "default": {},
            "foreach": {"foreach": True},
            "fused": {"fused": True},
            "single": {"foreach": False},
        }.items():
            yield Case(f"{name}-{how}", optimizer(lambda p, k=kind, f=flags: k(p, lr=1e-3, **f)))
    yield Case("adam-decay", optimizer(lambda p: torch.optim.Adam(p, weight_decay=0.1)))
    yield Case("adam-amsgrad", optimizer(lambda p: torch.optim.Adam(p, amsgrad=True)))
    yield Case("sgd", optimizer(lambda p: torch.optim.SGD(p, lr=0.1)))
    yield Case("sgd-momentum", optimizer(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)))
    yield Case(
        "sgd-nesterov-decay", optimizer(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1))
    )
    yield Case("rmsprop", optimizer(lambda p: torch.optim.RMSprop(p)))
    yield Case("adagrad", optimizer(lambda p: torch.optim.Adagrad(p)))

    def clip(device: str) -> Live:
        params = [nn.Parameter(torch.randn(*shape, device=device)) for shape in shapes()]
        for p in params:
            p.grad = torch.randn_like(p)
        return Live([("clip", lambda: nn.utils.clip_grad_norm_(params, 1.0))])

    yield Case("clip_grad_norm", clip)

    def scaled(device: str) -> Live:
        params = [nn.Parameter(torch.randn(*shape, device=device)) for shape in shapes()]
        stepper = torch.optim.Adam(params)
        scaler = torch.amp.GradScaler(device)

        def reset() -> None:
            for p in params:
                p.grad = torch.randn_like(p)

        def scale() -> None:
            scaler.scale(torch.ones((), device=device))

        stages: list[Stage] = [
            ("scale", scale), ("unscale", lambda: scaler.unscale_(stepper)), ("step", lambda: scaler.step(stepper)), ("update", scaler.update)
        ]  # fmt: skip
        return Live(stages, reset=reset)

    yield Case("grad_scaler", scaled)

    def average(device: str) -> Live:
        params = [torch.randn(*shape, device=device) for shape in shapes()]
        kept = [p.clone() for p in params]

        def loop() -> None:
            for k, p in zip(kept, params, strict=True):
                k.mul_(0.99).add_(p, alpha=0.01)

        return Live([("loop", loop), ("foreach", lambda: torch._foreach_lerp_(kept, params, 0.01))])

    yield Case("ema", average)


def transfer_cases() -> Iterator[Case]:
    def pinned(device: str) -> Callable[[], Any]:
        x = torch.randn(4096, 4096)
        if device == "cuda":
            x = x.pin_memory()
        return lambda: x.to(device, non_blocking=True)

    yield Case("copy-pinned", once(pinned))
    yield Case("copy-half", once(lambda device: (lambda x: lambda: x.to(device, torch.float16))(torch.randn(4096, 4096))))
    yield Case("item", call_case(lambda x: x.sum().item(), (4096, 4096)))
    yield Case("randn", once(lambda device: lambda: torch.randn(4096, 4096, device=device)))
    yield Case("randint", once(lambda device: lambda: torch.randint(9, (4096, 4096), device=device)))
    yield Case("arange", once(lambda device: lambda: torch.arange(1_000_000, device=device)))
    yield Case("python-scalar-tensor", once(lambda device: lambda: torch.tensor([1.0, 2.0], device=device)))


def cases() -> Iterator[Case]:
    """Every operation; matrix products first, so that their first call in the process is the process's first."""
    for group in (
        matrix_cases, convolution_cases, norm_cases, loss_cases, pointwise_cases, index_cases, attention_cases,
        recurrent_cases, image_cases, geometry_cases, optimizer_cases, transfer_cases,
    ):  # fmt: skip
        yield from group()
