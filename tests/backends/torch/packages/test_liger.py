"""Liger's stand-in in a model: the loss needs no logits, and the options choose what is replaced."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pinchpoint.core.errors import CannotFake

transformers = pytest.importorskip("transformers", reason="the models are those of transformers")
VOCABULARY, WIDTH, TOKENS = 32_000, 64, 512


@pytest.fixture
def liger(observer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    from transformers.models.llama import modeling_llama

    for name in ("LlamaRMSNorm", "LlamaMLP", "apply_rotary_pos_emb"):  # restored afterwards
        monkeypatch.setattr(modeling_llama, name, getattr(modeling_llama, name))
    observer.stand_ins.serve(["liger_kernel"])
    import liger_kernel.transformers  # type: ignore[import-not-found]

    return liger_kernel.transformers


def model() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=VOCABULARY,
    )
    return transformers.LlamaForCausalLM(config).cuda()


def test_a_training_loss_needs_no_logits(liger: Any, take: Any) -> None:
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS)).cuda()
    plain, patched = model(), model()
    liger._apply_liger_kernel_to_instance(model=patched)
    logits = TOKENS * VOCABULARY * 4
    before = take(lambda: plain(input_ids=tokens, labels=tokens).loss.backward())
    after = take(lambda: patched(input_ids=tokens, labels=tokens).loss.backward())
    assert before.peak > 2 * logits and after.peak < before.peak - logits
    assert patched.eval()(input_ids=tokens).logits.shape == (1, TOKENS, VOCABULARY)


def test_single_replacements_can_be_left_out(liger: Any) -> None:
    patched = model()
    liger.apply_liger_kernel_to_llama(model=patched, rope=False, fused_linear_cross_entropy=False)
    tokens = torch.zeros(1, 8, dtype=torch.int64, device="cuda")
    assert patched(input_ids=tokens).logits.shape == (1, 8, VOCABULARY)
    assert "forward" in vars(patched.model.norm) and "forward" not in vars(patched)


def test_a_model_can_be_made_with_its_classes_replaced(
    liger: Any, take: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)  # restored
    made = liger.AutoLigerKernelForCausalLM.from_config(
        model().config, fused_linear_cross_entropy=False, cross_entropy=True
    ).cuda()
    assert type(made.model.norm).__name__ == "LigerRMSNorm"
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS)).cuda()
    logits = TOKENS * VOCABULARY * 4
    # The logits once more in fp32, whose gradient is written over them.
    assert take(lambda: made(input_ids=tokens, labels=tokens).loss.backward()).peak < 2.7 * logits


def test_other_models_are_refused_with_the_package_to_install(liger: Any) -> None:
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=10)
    with pytest.raises(CannotFake, match="'gpt2' with liger-kernel") as caught:
        liger._apply_liger_kernel_to_instance(model=transformers.GPT2LMHeadModel(config))
    assert "liger-kernel" in caught.value.hint
