"""After its training steps a script is led on: to its largest batch, to its evaluation, and no further."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pinchpoint.core.errors import CannotFake
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.predict import predict

pytestmark = pytest.mark.usefixtures("quick_workers")
Predict = Callable[..., Forecast]
WIDTH = 1024
TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.zeros(4096, 1024))
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
def train(loader):
    model.train()
    for x in loader:
        x = x[0] if isinstance(x, (list, tuple)) else x
        optimizer.zero_grad()
        model(x.cuda()).square().mean().backward()
        optimizer.step()
loader = DataLoader(data, batch_size=64)
"""


@pytest.fixture
def of_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    monkeypatch.chdir(tmp_path)

    def predict_text(text: str) -> Forecast:
        Path("train.py").write_text(text, encoding="utf-8")
        return predict("train.py")

    return predict_text


def rows(count: int) -> int:
    return count * WIDTH * 4


def test_an_evaluation_after_the_epoch_is_in_the_peak(of_script: Predict) -> None:
    forecast = of_script(
        TRAIN
        + """
for epoch in range(10):
    train(loader)
    model.eval()
    right = 0
    with torch.no_grad():
        for (x,) in DataLoader(data, batch_size=4096):
            right += (model(x.cuda()) > 0).sum().item()
    if right > 10:
        print("better")
"""
    )
    assert forecast.seen == {"training_steps": 2, "inference_calls": 1, "evaluation": True}
    assert forecast.peak_allocated_bytes > 2 * rows(4096)
    assert forecast.steps == 2


def test_outputs_that_an_evaluation_keeps_are_counted_for_every_batch(of_script: Predict) -> None:
    forecast = of_script(
        TRAIN
        + """
train(loader)
model.eval()
kept = []
with torch.no_grad():
    for (x,) in DataLoader(data, batch_size=64):
        kept.append(model(x.cuda()))
"""
    )
    fixed = 2 * WIDTH * (WIDTH + 1) * 4  # weights and gradients
    assert forecast.peak_allocated_bytes - forecast.workspace_bytes == pytest.approx(
        fixed + rows(4096) + 2 * rows(64), rel=0.02
    )
    assert forecast.reasons == ()


def test_an_evaluation_with_the_loader_of_the_training_is_in_the_peak(of_script: Predict) -> None:
    forecast = of_script(
        TRAIN
        + """
for epoch in range(3):
    train(loader)
    kept = []
    for (x,) in loader:
        with torch.no_grad():
            kept.append(model(x.cuda()))
"""
    )
    fixed = 2 * WIDTH * (WIDTH + 1) * 4  # weights and gradients
    assert forecast.seen["evaluation"]
    assert forecast.peak_allocated_bytes - forecast.workspace_bytes > fixed + rows(4096)


@pytest.mark.parametrize("score", ["{}.item()", "float({})", "float({}.item())"])
def test_a_branch_after_the_training_steps_is_followed_both_ways(of_script: Predict, score: str) -> None:
    score = score.format("model(torch.zeros(64, 1024, device='cuda')).mean()")
    forecast = of_script(
        TRAIN
        + f"""
train(loader)
with torch.no_grad():
    if {score} < 0.5:
        torch.zeros(4096, 1024, device="cuda")
    else:
        torch.zeros(8192, 1024, device="cuda")
"""
    )
    assert forecast.low_bytes is not None and forecast.high_bytes is not None
    assert forecast.high_bytes - forecast.low_bytes == pytest.approx(rows(4096), rel=0.01)
    assert forecast.reasons == ()


@pytest.mark.parametrize("number", ["int({}.sum())", "{}.sum().item()", "int({}.float().sum())"])
def test_a_size_that_is_read_after_the_training_steps_leaves_the_answer_open(
    of_script: Predict, number: str
) -> None:
    number = number.format("(model(torch.zeros(64, 1024, device='cuda')) > 0)")
    forecast = of_script(f"{TRAIN}\ntrain(loader)\ntorch.zeros({number}, 1024, device='cuda')\n")
    assert forecast.fits["h200"] is None
    assert any("train.py:17" in reason for reason in forecast.reasons)


def test_a_metric_that_is_read_after_the_training_steps_does_not(of_script: Predict) -> None:
    forecast = of_script(
        TRAIN
        + """
train(loader)
right = int((model(torch.zeros(64, 1024, device="cuda")) > 0).sum())
print(["cat", "dog"][model(torch.zeros(1, 1024, device="cuda")).argmax().item()], right / 64)
"""
    )
    assert forecast.fits["h200"] is True and forecast.reasons == ()


def test_the_largest_batch_of_the_loader_is_trained_on(of_script: Predict) -> None:
    forecast = of_script(
        TRAIN
        + """
lengths = [16] * 40 + [512] + [16] * 10
train(DataLoader(lengths, batch_size=1, collate_fn=lambda n: torch.zeros(n[0], 1024)))
"""
    )
    assert forecast.seen["training_steps"] == 3
    assert forecast.peak_allocated_bytes > 3 * rows(512)
    assert forecast.high_bytes is None


def test_a_loader_that_is_too_long_to_look_through_widens_the_interval(of_script: Predict) -> None:
    forecast = of_script(
        TRAIN
        + """
lengths = [16 + i % 97 for i in range(100_000)]
train(DataLoader(lengths, batch_size=1, collate_fn=lambda n: torch.zeros(n[0] * 8, 1024)))
"""
    )
    assert forecast.high_bytes is not None and forecast.high_bytes > forecast.peak_allocated_bytes
    assert any("of 100,000 were looked at" in note for note in forecast.notes)


def test_an_error_after_the_training_steps_is_a_note(of_script: Predict) -> None:
    forecast = of_script(TRAIN + "\ntrain(loader)\nraise ValueError('no file')")
    assert forecast.seen == {"training_steps": 2, "inference_calls": 0, "evaluation": False}
    raised = "after its training steps, the script was run until it raised ValueError at "
    note = next(note for note in forecast.notes if note.startswith(raised))
    assert note.endswith("(no file)")
    assert forecast.fits["h200"] is True


def test_a_larger_evaluation_that_is_not_reached_leaves_the_answer_open(of_script: Predict) -> None:
    forecast = of_script(
        TRAIN
        + """
held_out = DataLoader(data, batch_size=1024)
train(loader)
raise ValueError('no file')
"""
    )
    assert forecast.fits["h200"] is None
    assert "batches of 1,024" in forecast.reasons[0]


def test_what_an_evaluation_leaves_behind_is_alive_in_the_next_epoch(of_script: Predict) -> None:
    text = """
for epoch in range(2):
    train(DataLoader(data, batch_size=2048))
    model.eval()
    with torch.no_grad():
        kept = model(torch.zeros(4096, 1024, device="cuda"))
"""
    alone = of_script(TRAIN + "train(DataLoader(data, batch_size=2048))")
    forecast = of_script(TRAIN + text)
    assert forecast.seen["training_steps"] == 3
    # The output that is kept is alive during the third step.
    assert forecast.peak_allocated_bytes == pytest.approx(alone.peak_allocated_bytes + rows(4096), rel=0.01)


UNFREEZE = """
torch.nn.init.zeros_(model.bias)
model.weight.requires_grad = False
optimizer = torch.optim.Adam([model.bias])
def unfreeze():
    model.weight.requires_grad = True
    optimizer.add_param_group({"params": [model.weight]})
"""
WEIGHTS = WIDTH * WIDTH * 4


@pytest.mark.parametrize("evaluate", ["model.eval(); torch.no_grad()(model)(data[:64][0].cuda())", "pass"])
def test_an_epoch_that_differs_trains_again(of_script: Predict, evaluate: str) -> None:
    forecast = of_script(
        TRAIN
        + UNFREEZE
        + f"""
for epoch in range(100):
    if epoch == 50:
        unfreeze()
    train(loader)
    {evaluate}
model(torch.zeros(4096, 1024, device="cuda"))
"""
    )
    assert forecast.breakdown["optimizer"] == pytest.approx(2 * WEIGHTS, rel=0.01)
    assert forecast.peak_allocated_bytes - forecast.workspace_bytes > 4 * WEIGHTS + 2 * rows(4096)
    assert forecast.reasons == ()


def test_a_second_phase_with_the_same_loader_trains(of_script: Predict) -> None:
    forecast = of_script(
        TRAIN
        + UNFREEZE
        + """
def fit(epochs):
    for epoch in range(epochs):
        train(loader)
        model.eval()
        with torch.no_grad():
            model(torch.zeros(64, 1024, device="cuda"))
fit(10)
unfreeze()
fit(100)
"""
    )
    assert forecast.breakdown["optimizer"] == pytest.approx(2 * WEIGHTS, rel=0.01)


def test_a_size_that_follows_from_the_epoch_is_that_of_the_last_one(of_script: Predict) -> None:
    forecast = of_script(
        TRAIN
        + """
for epoch in range(64):
    optimizer.zero_grad()
    for (x,) in loader:
        model(x.cuda().repeat(1 + epoch, 1)).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        model(torch.zeros(64, 1024, device="cuda"))
"""
    )
    assert forecast.peak_allocated_bytes > 3 * rows(4096)


READ_FLOATS = """
train(loader)
with torch.no_grad():
    scores = model(torch.zeros(64, 1024, device="cuda")).sigmoid()[:, 0]
"""


@pytest.mark.parametrize(
    "text",
    [
        "if scores.cpu().numpy().mean() > 0.3: large = torch.zeros(65_536, 1024, device='cuda')",
        "if min(scores.tolist()) < -2.5: large = torch.zeros(65_536, 1024, device='cuda')",
        "n = sum(s > 0.2 for s in scores.tolist())\nlarge = torch.zeros(n, 65_536, device='cuda')",
    ],
    ids=["mean", "least", "count"],
)
def test_memory_that_depends_on_floats_read_late_leaves_the_answer_open(
    of_script: Predict, text: str
) -> None:
    forecast = of_script(TRAIN + READ_FLOATS + text)
    (reason,) = forecast.reasons
    assert "memory depends on the values that are read at train.py:" in reason
    assert forecast.fits["h200"] is None


def test_floats_that_are_only_shown_do_not(of_script: Predict) -> None:
    forecast = of_script(TRAIN + READ_FLOATS + "print(scores.cpu().numpy().mean(), max(scores.tolist()))")
    assert forecast.fits["h200"] and forecast.reasons == ()


def test_floats_that_decide_about_an_inference_leave_the_answer_open(of_script: Predict) -> None:
    forecast = of_script("""
import torch
first, second = torch.nn.Linear(64, 64).cuda().eval(), torch.nn.Linear(64, 65_536).cuda().eval()
with torch.no_grad():
    for turn in range(4):
        x = torch.zeros(64, 64, device="cuda")
        if first(x).cpu().numpy().max() > 0.5:
            second(x)
""")
    assert forecast.fits["h200"] is None and "train.py:7" in forecast.reasons[0]


THREADS = """
import threading
def work():
    {work}
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_a_thread_that_uses_the_gpu_leaves_the_answer_open(of_script: Predict) -> None:
    forecast = of_script(TRAIN + "train(loader)" + THREADS.format(work="model(torch.zeros(8, 1024).cuda())"))
    assert forecast.fits["h200"] is None and "thread uses the GPU at train.py:18" in forecast.reasons[0]


def test_training_in_a_thread_is_said_not_to_be_supported(of_script: Predict) -> None:
    with pytest.raises(CannotFake, match=r"uses the GPU in a thread, at train\.py:12.*not support yet"):
        of_script(TRAIN + THREADS.format(work="train(loader)"))


def test_a_thread_may_prepare_data_on_the_host(of_script: Predict) -> None:
    forecast = of_script(TRAIN + THREADS.format(work="data.tensors[0].add_(1)") + "train(loader)")
    assert forecast.fits["h200"] and forecast.reasons == ()
