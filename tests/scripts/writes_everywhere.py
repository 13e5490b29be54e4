"""Trains, and writes, appends, replaces and deletes files on the way. Usage: writes_everywhere.py FOLDER"""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

folder = Path(sys.argv[1])
run = folder / "run"
run.mkdir(exist_ok=True)
os.makedirs("logs/deep", exist_ok=True)

model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

(run / "config.json").write_text(json.dumps({"lr": 0.1}))
with open(folder / "history.txt", "a") as history:
    history.write("a new run\n")
shutil.copy(folder / "history.txt", run / "history.bak")

for step in range(10):
    x = torch.randn(4096, 1024, device="cuda")
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    torch.save(model.state_dict(), run / f"before_{step}.pt")
    np.save(run / "loss.npy", np.zeros(step + 1))
    (folder / "keep.txt").unlink(missing_ok=True)
    if step == 0:
        os.rename(run / "config.json", run / "config.old")
    with open("logs/deep/log.csv", "w") as log:
        log.write(f"{step}\n")
    assert (run / f"before_{step}.pt").exists()
    assert Path("logs/deep/log.csv").read_text() == f"{step}\n"
    optimizer.step()
shutil.rmtree(run)
