"""Train timm's ConvNeXt with Mixup, an average of the weights (EMA) and native mixed precision."""

import timm
import timm.data
import timm.loss
import timm.optim
import timm.utils
import torch

model = timm.create_model("convnext_tiny", num_classes=1000, drop_path_rate=0.1).cuda()
ema = timm.utils.ModelEmaV3(model, decay=0.9998)
optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
mixup = timm.data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=1000)
train_loss = timm.loss.SoftTargetCrossEntropy().cuda()
scaler = timm.utils.NativeScaler()

model.train()
for step in range(3):
    images, labels = torch.randn(64, 3, 224, 224).cuda(), torch.randint(0, 1000, (64,)).cuda()
    images, targets = mixup(images, labels)
    with torch.autocast("cuda"):
        loss = train_loss(model(images), targets)
    optimizer.zero_grad()
    scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
    ema.update(model, step=step)
    print(f"step {step}: loss {loss.item():.3f}")

ema.eval()
with torch.no_grad(), torch.autocast("cuda"):
    images, labels = torch.randn(128, 3, 224, 224).cuda(), torch.randint(0, 1000, (128,)).cuda()
    top1, top5 = timm.utils.accuracy(ema(images), labels, topk=(1, 5))
print(f"top-1 {top1.item():.2f}, top-5 {top5.item():.2f}")
