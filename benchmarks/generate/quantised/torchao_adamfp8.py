"""A Llama trained in bf16 with the AdamW of torchao whose states are in float8."""

import torch
from torchao.optim import AdamWFp8
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
optimizer = AdamWFp8(model.parameters(), lr=1e-4)
for _ in range(3):
    tokens = torch.randint(0, 32000, (8, 512), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
