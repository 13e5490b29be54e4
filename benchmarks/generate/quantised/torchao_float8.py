"""Generation with weights and activations in float8 by torchao, with a scale per row."""

import torch
from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=4,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
quantize_(model, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))
prompts = torch.randint(3, 32000, (8, 256), device="cuda")
tokens = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    max_new_tokens=40,
    min_new_tokens=40,
    do_sample=False,
    pad_token_id=0,
)
print(tokens.shape)
