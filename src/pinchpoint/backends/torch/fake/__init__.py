"""PyTorch on a simulated CUDA device: tensors, library, autocast, saving and distributed training."""
