"""Summarise with T5: beam search over an encoder-decoder in fp16."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

config = T5Config(
    d_model=768,
    d_kv=64,
    d_ff=3072,
    num_layers=12,
    num_decoder_layers=12,
    num_heads=12,
    decoder_start_token_id=0,
)
model = T5ForConditionalGeneration(config).half().cuda().eval()
documents = torch.randint(1, 32000, (16, 512)).cuda()
with torch.no_grad():
    summaries = model.generate(
        input_ids=documents,
        attention_mask=torch.ones_like(documents),
        num_beams=4,
        min_new_tokens=32,
        max_new_tokens=32,
    )
print(summaries.shape)
