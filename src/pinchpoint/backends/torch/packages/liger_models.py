"""`apply_liger_kernel_to_*` and the Trainer's `use_liger_kernel`, for models of transformers like Llama."""

from __future__ import annotations

import importlib
from types import MethodType
from typing import Any

import torch.nn.functional as F

from pinchpoint.core.errors import CannotFake

# Model types of transformers that are patched like Llama -> the prefix of their classes.
_MODELS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "smollm3": "SmolLM3"}
_CHOICES = ("rope", "cross_entropy", "fused_linear_cross_entropy", "rms_norm", "swiglu")
INSTALL = "Install the package, whose own Python then runs: pip install --no-deps liger-kernel."


def patches(layers: dict[str, Any]) -> dict[str, Any]:
    """`apply_liger_kernel_to_*` for the models that are patched like Llama."""
    norm, mlp = layers["LigerRMSNorm"], layers["LigerSwiGLUMLP"]
    fused_loss = layers["LigerFusedLinearCrossEntropyLoss"]

    def forward(
        self: Any,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        labels: Any = None,
        use_cache: Any = None,
        logits_to_keep: Any = 0,
        **kwargs: Any,
    ) -> Any:
        """A causal language model whose training loss needs no logits; the Trainer reads the arguments."""
        from transformers.modeling_outputs import CausalLMOutputWithPast

        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        hidden, logits, loss = outputs.last_hidden_state[:, kept, :], None, None
        if self.training and labels is not None:
            labels = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1)
            count = kwargs.get("num_items_in_batch")
            reduction = "mean" if count is None else "sum"
            hidden = hidden.view(-1, hidden.shape[-1])
            loss = fused_loss(reduction=reduction)(self.lm_head.weight, hidden, labels)
            loss = loss if count is None else loss / count
        else:
            logits = self.lm_head(hidden)
            if labels is not None:
                size = self.config.vocab_size
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def patch(kind: str, model: Any, options: dict[str, bool]) -> None:
        chosen = {
            "rope": True,
            "fused_linear_cross_entropy": True,
            "rms_norm": True,
            "swiglu": True,
        } | options
        if chosen.get("cross_entropy") and kind != "mistral":  # where it replaces a name that is not used
            F.cross_entropy = cross_entropy
        module: Any = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
        prefix = _MODELS[kind]
        if chosen["rope"]:
            module.apply_rotary_pos_emb = layers["liger_rotary_pos_emb"]
        if chosen["rms_norm"]:
            setattr(module, f"{prefix}RMSNorm", norm)
        if chosen["swiglu"]:
            setattr(module, f"{prefix}MLP", mlp)
        if chosen["fused_linear_cross_entropy"]:
            if model is None:
                getattr(module, f"{prefix}ForCausalLM").forward = forward
            else:
                model.forward = MethodType(forward, model)
        for part in () if model is None else model.modules():
            if chosen["rms_norm"] and type(part).__name__ == f"{prefix}RMSNorm":
                part.casting_mode, part.in_place = "llama", True
                part.forward = MethodType(norm.forward, part)
            elif chosen["swiglu"] and type(part).__name__ == f"{prefix}MLP":
                part.forward = MethodType(mlp.forward, part)

    def cross_entropy(
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        return layers["LigerCrossEntropyLoss"](ignore_index=ignore_index, reduction=reduction)(input, target)

    def of_kind(kind: str) -> Any:
        return lambda model=None, **options: patch(kind, model, options)

    def supported(config: Any) -> str:
        kind = getattr(config, "model_type", None)
        if kind not in _MODELS:
            raise CannotFake(
                f"Models of type {kind!r} with liger-kernel are not supported by pinchpoint yet.",
                hint=INSTALL,
            )
        return kind

    def to_instance(model: Any, **options: Any) -> None:
        patch(supported(getattr(model, "config", None)), model, options)

    class AutoLigerKernelForCausalLM:
        """AutoModelForCausalLM of a model whose classes are replaced first."""

        @staticmethod
        def from_config(config: Any, **options: Any) -> Any:
            chosen = {name: options.pop(name) for name in _CHOICES if name in options}
            patch(supported(config), None, chosen)
            return _transformers().AutoModelForCausalLM.from_config(config, **options)

        @staticmethod
        def from_pretrained(name: Any, *args: Any, **options: Any) -> Any:
            chosen = {choice: options.pop(choice) for choice in _CHOICES if choice in options}
            patch(supported(_transformers().AutoConfig.from_pretrained(name)), None, chosen)
            return _transformers().AutoModelForCausalLM.from_pretrained(name, *args, **options)

    functions = {f"apply_liger_kernel_to_{kind}": of_kind(kind) for kind in _MODELS}
    functions["AutoLigerKernelForCausalLM"] = AutoLigerKernelForCausalLM
    return {**functions, "_apply_liger_kernel_to_instance": to_instance}


def _transformers() -> Any:
    """The package, of whose 3,000 names type checkers would otherwise learn for 20 seconds."""
    return importlib.import_module("transformers")
