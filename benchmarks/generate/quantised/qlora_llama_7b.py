"""QLoRA of a Llama with 7 B parameters: NF4 weights with double quantisation, checkpointing, 8-bit AdamW."""

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(use_cache=False)
with torch.device("meta"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)


def quantised(linear: torch.nn.Linear) -> bnb.nn.Linear4bit:
    layer = bnb.nn.Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=False,
        compute_dtype=torch.bfloat16,
        quant_type="nf4",
        device="meta",
    )
    weight = torch.randn(linear.out_features, linear.in_features, dtype=torch.bfloat16, device="cuda") * 0.02
    layer.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=layer).to("cuda")
    return layer


for name, module in list(model.named_modules()):
    if isinstance(module, torch.nn.Linear) and name != "lm_head":
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, quantised(module))
    elif name and not list(module.children()) and not isinstance(module, bnb.nn.Linear4bit):
        module.to_empty(device="cuda")
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
model.model.rotary_emb = type(model.model.rotary_emb)(config, device="cuda")
model.is_loaded_in_4bit = True
model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
model = get_peft_model(
    model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
)
optimizer = bnb.optim.AdamW8bit(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-4)

for _ in range(3):
    tokens = torch.randint(0, config.vocab_size, (4, 1024), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
