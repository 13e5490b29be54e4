"""Inference scripts run to their end: what grows from call to call is counted, by `generate` too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.templates import Template

from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.predict import predict

pytestmark = pytest.mark.usefixtures("quick_workers")
Predict = Callable[..., Forecast]
MODELS = [f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "llama", "mistral")]


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    """Workers that have imported transformers, which takes longer than a run."""
    workers = Template(*(MODELS if find_spec("transformers") else ()))
    yield workers
    workers.end()


@pytest.fixture
def of_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    monkeypatch.chdir(tmp_path)

    def predict_text(text: str, *args: str) -> Forecast:
        Path("infer.py").write_text(text, encoding="utf-8")
        return predict("infer.py", args=args)

    return predict_text


LOOP = """
import sys, torch
model = torch.nn.Linear(1024, 1024).cuda().eval()
kept = []
with torch.no_grad():
    for call in range(int(sys.argv[1])):
        kept.append(model(torch.zeros(2048, 1024, device="cuda")))
"""


def test_outputs_that_a_loop_keeps_are_counted_for_every_call(of_script: Predict) -> None:
    forecast = of_script(LOOP, "20")
    output = 2048 * 1024 * 4
    # The weights, all outputs and the last input.
    expected = 1024 * 1025 * 4 + 20 * output + output
    assert forecast.peak_allocated_bytes - forecast.workspace_bytes == pytest.approx(expected, rel=0.01)
    assert forecast.seen == {"training_steps": 0, "inference_calls": 20, "evaluation": False}
    assert forecast.reasons == ()


def test_an_error_after_the_first_calls_leaves_the_answer_open(of_script: Predict) -> None:
    forecast = of_script(LOOP + "\nraise ValueError('no such label')", "3")
    assert forecast.fits["h200"] is None
    assert "infer.py:9 (no such label) after 3 inference calls" in forecast.reasons[0]


GENERATE = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(n_layer=1, n_embd=512, n_head=4, vocab_size=512)
model = GPT2LMHeadModel(config).cuda().eval()
prompt = torch.randint(0, 512, (16, 8), device="cuda")
model.generate(prompt, max_new_tokens=int(sys.argv[1]), pad_token_id=0, num_beams=int(sys.argv[2]))
"""


@pytest.mark.parametrize("beams", [1, 2])
def test_generate_holds_the_keys_and_values_of_every_token(of_script: Predict, beams: int) -> None:
    pytest.importorskip("transformers")
    short, long = (of_script(GENERATE, tokens, str(beams)) for tokens in ("8", "200"))
    per_token = 2 * 16 * beams * 512 * 4  # keys and values of the layer
    growth = long.peak_allocated_bytes - short.peak_allocated_bytes
    # While keys are concatenated, the old ones are still there: half more.
    assert 192 * per_token <= growth <= 1.75 * 192 * per_token
    assert long.seen["inference_calls"] == 200
    assert long.reasons == ()
    assert any("maximum length" in note for note in long.notes)


MASKED = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(n_layer=1, n_embd=64, n_inner=64, n_head=2, vocab_size=64)
model = GPT2LMHeadModel(config).cuda().eval()
ids = torch.zeros(16, 1024, dtype=torch.long)
mask = torch.ones_like(ids)
mask[:, 1:] = int(sys.argv[1])
with torch.no_grad():
    model(ids.cuda(), attention_mask=mask.cuda(), use_cache=False)
"""


def test_transformers_leaves_out_the_mask_of_texts_without_padding(of_script: Predict) -> None:
    """With padding, every layer gets a mask of (batch, 1, tokens, tokens) floats; without, none."""
    pytest.importorskip("transformers")
    full, padded = (of_script(MASKED, one).peak_allocated_bytes for one in "10")
    assert padded - full > 0.5 * 16 * 1024 * 1024 * 4


def test_a_long_run_reports_its_calls(tmp_path: Path) -> None:
    script = tmp_path / "infer.py"
    script.write_text(LOOP.replace("kept.append(", "import time; time.sleep(0.05); ("), encoding="utf-8")
    texts: list[str] = []
    predict(str(script), args=("60",), on_status=texts.append)
    assert texts and all(text.startswith("running the script: ") for text in texts)


SLIDING = """
import sys, torch
from transformers import MistralConfig, MistralForCausalLM
sizes = dict(hidden_size=64, intermediate_size=64, num_attention_heads=2, num_key_value_heads=2)
config = MistralConfig(vocab_size=64, num_hidden_layers=1, sliding_window=int(sys.argv[2]), **sizes)
model = MistralForCausalLM(config).cuda().eval()
prompt = torch.randint(0, 64, (512, 4), device="cuda")
model.generate(prompt, max_new_tokens=int(sys.argv[1]), pad_token_id=0)
"""


def test_a_cache_stops_growing_at_its_sliding_window(of_script: Predict) -> None:
    pytest.importorskip("transformers")
    long = of_script(SLIDING, "80", "20")
    token = 2 * 512 * 64 * 4  # bytes of the keys and values of one token
    # Twice the window, while the last token is appended, and less than the 84 tokens that it has seen.
    assert 40 * token < long.peak_allocated_bytes - long.workspace_bytes < 60 * token
    far = of_script(SLIDING, "240", "200")
    assert any("beyond its sliding window" in note for note in far.notes)
    assert far.peak_allocated_bytes > long.peak_allocated_bytes + 160 * 512 * 64 * 4


QUANTISED = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache, QuantizedLayer

class Layer(QuantizedLayer):
    def _quantize(self, tensor, axis):
        tensor.repeat(1, 1, 1, 64)  # what is computed on the way
        return tensor.to(torch.int8)

    def _dequantize(self, codes):
        return codes.to(torch.float32)

sizes = dict(hidden_size=64, intermediate_size=64, num_attention_heads=2, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=1, **sizes)).cuda().eval()
prompt = torch.randint(0, 64, (64, 4), device="cuda")
cache = Cache(layers=[Layer(residual_length=120)])
model.generate(prompt, max_new_tokens=int(sys.argv[1]), pad_token_id=0, past_key_values=cache)
"""


def test_a_quantised_cache_is_quantised_again_with_all_its_tokens(of_script: Predict) -> None:
    cache_utils = pytest.importorskip("transformers.cache_utils")
    if not hasattr(cache_utils, "QuantizedLayer"):
        pytest.skip("this version of transformers has no layers of caches")
    token = 64 * 64 * 4  # bytes of the keys of one token
    others = 64 * 2**20  # the model, a workspace, and the logits
    many = of_script(QUANTISED, "300")
    assert 64 * 300 * token < many.peak_allocated_bytes < 72 * 300 * token + others
    assert any("unquantised" in note for note in many.notes)


LOGITS = """
import torch, weakref
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(hidden_size=64, intermediate_size=64, num_attention_heads=2, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=1, **sizes)).cuda().eval()
last = []

def before(module, args, kwargs):
    assert not last or last.pop()() is None, "the logits of the last token are alive"

model.register_forward_pre_hook(before, with_kwargs=True)
model.register_forward_hook(lambda module, args, output: last.append(weakref.ref(output.logits)))
model.generate(torch.randint(0, 64, (2, 4), device="cuda"), max_new_tokens=6, pad_token_id=0)
"""


def test_nothing_keeps_the_logits_of_the_last_token(of_script: Predict) -> None:
    pytest.importorskip("transformers")
    assert not of_script(LOGITS).reasons
