"""Extract features of images with a pretrained-style timm vision transformer in inference mode."""

import timm
import torch

model = timm.create_model("vit_base_patch16_224", pretrained=False, num_classes=0).eval().cuda()
config = timm.data.resolve_model_data_config(model)
features = []
with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
    for _ in range(4):
        images = torch.rand(256, *config["input_size"]).cuda()
        features.append(model(images).float().cpu())
features = torch.cat(features)
print(features.shape)
