"""A Llama trained in bf16 with the 4-bit AdamW of torchao and stochastic rounding."""

import torch
from torchao.optim import AdamW4bit
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=8,
    num_attention_heads=32,
    num_key_value_heads=4,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = AdamW4bit(model.parameters(), lr=1e-4, bf16_stochastic_round=True)
for _ in range(3):
    tokens = torch.randint(0, 32000, (8, 512), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
