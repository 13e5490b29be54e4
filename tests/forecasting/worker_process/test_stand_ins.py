"""Scripts that need packages which cannot be installed without CUDA, predicted with their stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.forecasting.predict import predict

pytestmark = pytest.mark.usefixtures("quick_workers")

ATTENTION = """
import torch
from torch import nn
{imports}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 64)).unbind(2)
        return self.out({call}.flatten(2))

net = Net().cuda().bfloat16()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.randn(1, 8192, 256, device="cuda", dtype=torch.bfloat16)).float().mean().backward()
    optimizer.step()
"""


def write(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


def test_a_script_with_flash_attn_is_predicted_and_the_note_says_how(tmp_path: Path) -> None:
    script = ATTENTION.format(
        imports="from flash_attn import flash_attn_func", call="flash_attn_func(q, k, v, causal=True)"
    )
    forecast = predict(write(tmp_path, script), card="rtx4090")
    assert forecast.fits["rtx4090"] is True and forecast.reasons == ()
    assert any("flash_attn is not installed here" in note for note in forecast.notes)
    products_bytes = 4 * 8192 * 8192 * 2  # of queries and keys, which flash attention never allocates
    assert forecast.peak_allocated_bytes < products_bytes / 2


def test_an_optional_package_is_not_used_if_it_is_not_installed(tmp_path: Path) -> None:
    imports = """
try:
    from flash_attn import flash_attn_func
except ImportError:
    flash_attn_func = lambda q, k, v: v
"""
    script = write(tmp_path, ATTENTION.format(imports=imports, call="flash_attn_func(q, k, v)"))
    (note,) = [note for note in predict(script).notes if "flash_attn" in note]
    assert "runs without it" in note and "--with-package flash_attn" in note
    (note,) = [note for note in predict(script, packages=["flash_attn"]).notes if "flash_attn" in note]
    assert "its memory is modelled" in note
    with pytest.raises(BadInput, match="no stand-in for the package 'flash_atn'"):
        predict(script, packages=["flash_atn"])


def test_transformers_finds_flash_attention(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the model is one of transformers")
    script = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    vocab_size=100, attn_implementation="flash_attention_2", dtype=torch.bfloat16,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
tokens = torch.zeros(1, 16384, dtype=torch.int64, device="cuda")
for _ in range(2):
    model(input_ids=tokens, labels=tokens).loss.backward()
"""
    forecast = predict(write(tmp_path, script), card="h200")
    assert forecast.fits["h200"] is True and forecast.reasons == ()
    assert any("flash_attn is not installed here" in note for note in forecast.notes)
    assert forecast.peak_allocated_bytes < 16384 * 16384 * 2  # one head's product of queries and keys


def test_an_unknown_triton_kernel_makes_fits_unknown_and_is_named(tmp_path: Path) -> None:
    script = """
import torch, triton, triton.language as tl

@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

net = torch.nn.Linear(1024, 1024).cuda()
with torch.no_grad():
    for _ in range(4):
        x = net(torch.randn(1024, 1024, device="cuda"))
        y = torch.empty_like(x)
        twice[(1024,)](x, y, x.numel(), BLOCK=1024)
"""
    forecast = predict(write(tmp_path, script), card="h200")
    assert forecast.fits["h200"] is None
    (reason,) = forecast.reasons
    assert reason.startswith("twice at ") and 'pinchpoint.register_kernel("twice"' in reason
    registered = "import pinchpoint\npinchpoint.register_kernel('twice')\n" + script
    forecast = predict(write(tmp_path, registered), card="h200")
    assert forecast.fits["h200"] is True and forecast.reasons == ()


def test_a_factory_is_imported_with_the_stand_ins_it_needs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom flash_attn import flash_attn_func\n\n"
        "def step_of(size, device):\n"
        "    q = torch.randn(1, size, 4, 64, device=device, dtype=torch.float16, requires_grad=True)\n"
        "    return lambda: flash_attn_func(q, q, q).float().sum().backward()\n"
    )
    forecast = predict(f"{tmp_path / 'mine.py'}:step_of", size=4096)
    assert forecast.mode == "train" and forecast.reasons == ()
