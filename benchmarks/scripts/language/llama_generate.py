"""Sample from a Llama in bf16 with top-p, grouped key-value heads, and prompts of different lengths."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000,
    hidden_size=1536,
    intermediate_size=4096,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=4,
)
model = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
model.eval()

lengths = torch.tensor([256, 200, 128, 96, 64, 48, 32, 16])
prompts = torch.randint(3, 32000, (8, 256))
mask = (torch.arange(256)[None] >= 256 - lengths[:, None]).long()  # padded on the left
with torch.inference_mode():
    tokens = model.generate(
        input_ids=prompts.to("cuda"),
        attention_mask=mask.to("cuda"),
        max_new_tokens=128,
        min_new_tokens=128,
        do_sample=True,
        temperature=0.8,
        top_p=0.95,
        pad_token_id=0,
    )
print(tokens[:, 256:].shape)
