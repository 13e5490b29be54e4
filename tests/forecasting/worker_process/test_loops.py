"""Loops of a script that train are ended early, and what follows them is in the forecast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.predict import predict

pytestmark = pytest.mark.usefixtures("quick_workers")
Predict = Callable[..., Forecast]
WIDTH = 1024
WEIGHTS = WIDTH * (WIDTH + 1) * 4
START = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
def train(rows=64):
    optimizer.zero_grad()
    loss = model(torch.zeros(rows, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""


@pytest.fixture
def of_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    monkeypatch.chdir(tmp_path)

    def predict_text(text: str) -> Forecast:
        Path("train.py").write_text(START + text, encoding="utf-8")
        return predict("train.py")

    return predict_text


def rows(count: int) -> int:
    return count * WIDTH * 4


def used(forecast: Forecast) -> int:
    """The peak without workspaces."""
    return forecast.peak_allocated_bytes - forecast.workspace_bytes


def test_what_follows_a_loop_without_a_loader_is_in_the_peak(of_script: Predict) -> None:
    forecast = of_script("""
losses = []
for step in range(100_000):
    losses.append(train())
print(losses[-1], sum(losses) / len(losses))
with torch.no_grad():
    parts = []
    for start in range(8):
        parts.append(model(torch.zeros(512, 1024, device="cuda")))
    image = torch.cat(parts)
""")
    assert forecast.seen == {"training_steps": 2, "inference_calls": 8, "evaluation": True}
    # All parts and their concatenation: a loop that does not train is not ended.
    assert used(forecast) == pytest.approx(2 * WEIGHTS + 2 * rows(8 * 512), rel=0.01)
    assert forecast.notes == (
        "loops that train were ended early, and what follows them was run: train.py:13 (2 of 100,000 turns)",
    )


def test_turns_with_other_answers_to_conditions_are_run(of_script: Predict) -> None:
    forecast = of_script("""
count, last = 64, 30_000
for step in range(last):
    if step == 20_000:
        count = 2048
    train(count)
    if (step + 1) % 1000 == 0:
        with torch.no_grad():
            model(torch.zeros(128, 1024, device="cuda"))
    if step == last - 1:
        torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt"))
""")
    assert used(forecast) > 2 * WEIGHTS + 3 * rows(2048)
    assert forecast.seen == {"training_steps": 6, "inference_calls": 2, "evaluation": True}
    assert not any("raised" in note for note in forecast.notes)


def test_a_size_that_follows_from_the_step_is_that_of_the_last_one(of_script: Predict) -> None:
    forecast = of_script("""
for step in range(64):
    train(64 * (1 + step))
""")
    assert used(forecast) > 2 * WEIGHTS + 3 * rows(4096)


def test_turns_with_other_answers_in_a_function_are_run(of_script: Predict) -> None:
    forecast = of_script("""
def rows(step):
    return 64 if step < 300 else 4096 if step < 600 else 128
for step in range(100_000):
    train(rows(step))
""")
    assert used(forecast) > 2 * WEIGHTS + 3 * rows(4096) and forecast.reasons == ()
    assert forecast.seen["training_steps"] == 4  # 0, 1, 300, and the last one


def test_the_largest_batch_of_a_list_is_trained_on(of_script: Predict) -> None:
    forecast = of_script("""
for batch in [torch.zeros(n, 1024) for n in (8, 16, 2048, 8, 16)]:
    train(len(batch))
""")
    assert used(forecast) > 2 * WEIGHTS + 3 * rows(2048)


def test_a_while_loop_and_its_second_phase_are_followed(of_script: Predict) -> None:
    forecast = of_script("""
step = 0
while True:
    train()
    step += 1
    if step > 5000:
        break
fine = torch.optim.Adam(model.parameters())
while step < 20_000:
    optimizer = fine
    train()
    step += 1
model(torch.zeros(4096, 1024, device="cuda"))
""")
    assert forecast.breakdown["optimizer"] == pytest.approx(2 * WEIGHTS, rel=0.01)
    assert used(forecast) == pytest.approx(4 * WEIGHTS + 2 * rows(4096), rel=0.02)


GROW = """
import collections
kept = collections.deque(maxlen={length})
for step in {turns}:
    train()
    kept.append({kept})
    {then}
"""
TENSOR = 'torch.zeros(64, 1024, device="cuda")'


@pytest.mark.parametrize(
    ("length", "kept"), [(None, 1000), (400, 400)], ids=["without a limit", "with a maximum length"]
)
def test_memory_that_every_turn_keeps_is_counted_for_all_of_them(
    of_script: Predict, length: int | None, kept: int
) -> None:
    text = GROW.format(length=length, turns="range(1000)", kept=f"(step, {TENSOR})", then="pass")
    forecast = of_script(text if length else text.replace("collections.deque(maxlen=None)", "[]"))
    assert used(forecast) == pytest.approx(2 * WEIGHTS + kept * rows(64), rel=0.01)
    assert any("train.py:14 keeps 256.00 KiB: this was added for" in note for note in forecast.notes)
    assert forecast.reasons == () and forecast.fits["h200"] is True


def test_few_turns_that_keep_models_are_all_run(of_script: Predict) -> None:
    forecast = of_script("""
kept = []
for width in (8, 1024, 16):
    for fold in range(5):
        net = torch.nn.Linear(1024, width).cuda()
        adam = torch.optim.Adam(net.parameters())
        for step in range(300):
            net(torch.zeros(1, 1024, device="cuda")).sum().backward()
            adam.step()
            adam.zero_grad(set_to_none=False)
        kept.append(net)
""")
    # Five large models with their gradients, the states of the last one and its step, the first model.
    assert used(forecast) == pytest.approx((10 + 2 + 1 + 1) * WEIGHTS, rel=0.03)
    assert forecast.reasons == ()


@pytest.mark.parametrize(
    ("turns", "kept", "then"),
    [
        ("range(1000)", "torch.zeros(64 + step, 1024, device='cuda')", "pass"),
        ("__import__('itertools').count()", TENSOR, "pass"),
        ("range(1000)", TENSOR, "if len(kept) > 100: kept.pop()"),
    ],
    ids=["irregular", "unknown length", "removed"],
)
def test_memory_that_may_not_grow_for_ever_leaves_the_answer_open(
    of_script: Predict, turns: str, kept: str, then: str
) -> None:
    text = GROW.format(length=None, turns=turns, kept=kept, then=then)
    forecast = of_script(text.replace("collections.deque(maxlen=None)", "[]"))
    assert forecast.fits["h200"] is None
    assert "with every turn of the loop at train.py:14" in forecast.reasons[0]


CYCLE = """def cycle(loader):
    while True:
        yield from loader
"""


@pytest.mark.parametrize(
    ("source", "batches"),
    [(CYCLE + "batches = cycle(loader)", 4), ("batches = iter(loader)", 1)],
    ids=["generator", "iterator"],
)
def test_batches_do_not_end_within_a_turn(of_script: Predict, source: str, batches: int) -> None:
    forecast = of_script(f"""
loader = torch.utils.data.DataLoader(torch.zeros(4096, 1024), batch_size=64)
{source}
step = 0
while step < 60:
    for _ in range({batches}):
        train(len(next(batches)))
    step += 1
result = torch.zeros(4096, 1024, device="cuda")
""")
    assert used(forecast) == pytest.approx(2 * WEIGHTS + rows(4096), rel=0.01)
    assert forecast.reasons == () and not any("raised" in note for note in forecast.notes)


def test_a_generator_goes_on_after_the_loop_that_trained_with_it(of_script: Predict) -> None:
    forecast = of_script("""
def endless():
    while True:
        yield torch.zeros(64, 1024, device="cuda")

batches = endless()
for step in range(60):
    train(len(next(batches)))
result = torch.zeros(64 * len(next(batches)), 1024, device="cuda")
""")
    assert used(forecast) == pytest.approx(2 * WEIGHTS + rows(4096), rel=0.01)
    assert forecast.reasons == ()


def test_an_error_after_a_loop_that_was_ended_is_a_note(of_script: Predict) -> None:
    forecast = of_script("""
history = {}
for step in range(1000):
    history[step] = train()
print(history[500])
""")
    assert forecast.fits["h200"] is True
    assert any("until it raised KeyError" in note for note in forecast.notes)


def test_an_error_before_further_work_leaves_the_answer_open(of_script: Predict) -> None:
    forecast = of_script("""
history = {}
for step in range(1000):
    history[step] = train()
print(history[500])
with torch.no_grad():
    model(torch.zeros(65_536, 1024, device="cuda"))
""")
    assert forecast.fits["h200"] is None
    assert any("raised KeyError" in reason and "train.py:17" in reason for reason in forecast.reasons)


def test_a_test_after_all_epochs_of_a_loader_is_in_the_peak(of_script: Predict) -> None:
    forecast = of_script("""
from torch.utils.data import DataLoader
for epoch in range(50):
    for x in DataLoader(torch.zeros(4096, 1024), batch_size=64):
        train(len(x))
    with torch.no_grad():
        model(torch.zeros(64, 1024, device="cuda"))
with torch.no_grad():
    model(torch.zeros(4096, 1024, device="cuda"))
""")
    assert used(forecast) == pytest.approx(2 * WEIGHTS + 2 * rows(4096), rel=0.02)


def test_the_history_of_lbfgs_is_full(of_script: Predict) -> None:
    text = """
for step in range(1000):
    train()
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter={}, history_size=20, line_search_fn="strong_wolfe")
def closure():
    lbfgs.zero_grad()
    loss = model(torch.zeros(64, 1024, device="cuda")).square().mean()
    loss.backward()
    return loss
{}lbfgs.step(closure)
"""
    full = of_script(text.format(500, ""))
    short = of_script(text.format(5, "for _ in range(2): "))
    # The history has two vectors per iteration except the first.
    history = 2 * (20 - 9) * WEIGHTS
    assert full.peak_allocated_bytes - short.peak_allocated_bytes == pytest.approx(history, rel=0.02)
    assert full.low_bytes is not None
    assert full.low_bytes < full.peak_allocated_bytes - 2 * 15 * WEIGHTS
    assert full.reasons == ()


LBFGS = """
def closure():
    lbfgs.zero_grad()
    loss = model(torch.zeros(64, 1024, device="cuda")).square().mean()
    loss.backward()
    return loss
"""


def test_the_history_of_lbfgs_is_that_of_all_loops_and_is_freed(of_script: Predict) -> None:
    forecast = of_script(
        LBFGS
        + """
turn = 0
while turn < 3:  # a loop that is over says nothing about later ones
    turn += 1
for part in range(3):
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=100)
    for warm_up in range(2):
        lbfgs.step(closure)
    for step in range(9):
        lbfgs.step(closure)
"""
    )
    # At most 3 * 11 steps of 2 iterations, of one optimizer at a time: 65 pairs of vectors.
    history = forecast.breakdown["optimizer"] / (2 * WEIGHTS)
    assert 11 * 2 - 1 <= history <= 3 * 11 * 2 + 2


def test_turns_that_differ_in_size_are_run_and_others_are_allowed_for(of_script: Predict) -> None:
    turns = """
sizes = iter([64, 65, 64, 4096, 64, 66] + [64, 67] * 5_000)
for _ in range({}):
    train(next(sizes))
"""
    constant = of_script("for _ in range(2):\n    train(4096)\n")
    short, long = (of_script(turns.format(count)) for count in (6, 9_999))
    assert short.peak_allocated_bytes == pytest.approx(constant.peak_allocated_bytes, rel=0.001)
    assert short.low_bytes is None and short.seen["training_steps"] == 6
    assert long.high_bytes is not None and long.high_bytes > 1.5 * long.peak_allocated_bytes
    assert long.seen["training_steps"] == 64
    assert sum("sizes differ between turns" in note for note in long.notes) == 1


@pytest.mark.parametrize("steps", [3, 100])
def test_a_gradient_scaler_may_skip_every_step_of_a_short_run(of_script: Predict, steps: int) -> None:
    """As on an H200: three steps of torchvision's RetinaNet and of YOLO11 in fp16 were all skipped."""
    forecast = of_script(f"""
optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cuda")
for step in range({steps}):
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(torch.zeros(64, 1024, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""")
    states = forecast.breakdown["optimizer"]
    assert states >= 2 * WEIGHTS
    if steps == 100:
        assert forecast.low_bytes is None
    else:
        without_states = forecast.peak_allocated_bytes - states
        assert forecast.low_bytes is not None and 0.99 * without_states < forecast.low_bytes < without_states


def test_what_turns_differ_by_narrows_the_interval_of_a_count(of_script: Predict) -> None:
    """A mask of few elements beside a large layer, as the matches of SSD beside its feature maps."""
    forecast = of_script("""
for step in range(3):
    train(20_000)
    torch.manual_seed(step)  # so that the counts differ from turn to turn
    boxes = torch.rand(200).cuda()
    (boxes[boxes > 0.5] * model.weight[0, 0]).sum().backward()
""")
    assert forecast.low_bytes is not None and forecast.high_bytes is not None
    assert forecast.high_bytes - forecast.low_bytes < 0.01 * forecast.peak_allocated_bytes


def test_two_turns_do_not_narrow_the_interval_of_a_count(of_script: Predict) -> None:
    forecast = of_script("""
for step in range(2):
    train(20_000)
    torch.manual_seed(step)
    boxes = torch.rand(200).cuda()
    (boxes[boxes > 0.5] * model.weight[0, 0]).sum().backward()
""")
    assert forecast.low_bytes is not None and forecast.high_bytes is not None
    assert forecast.high_bytes - forecast.low_bytes > 0.1 * forecast.peak_allocated_bytes


def test_an_evaluation_between_training_steps_is_seen(of_script: Predict) -> None:
    forecast = of_script("""
for step in range(2):
    with torch.no_grad():
        model(torch.zeros(64, 1024, device="cuda"))
    train()
""")
    assert forecast.seen["evaluation"] is True


def test_turns_that_evaluate_or_train_a_part_are_not_larger_data(of_script: Predict) -> None:
    forecast = of_script("""
for step in range(100_000):
    if step % 2 == 0:
        with torch.no_grad():
            model(torch.zeros(4096, 1024, device="cuda"))
    if step % 3:
        train()
""")
    assert forecast.low_bytes is None and forecast.seen["training_steps"] < 8


def test_a_loop_in_a_module_beside_the_script_is_ended_too(of_script: Predict) -> None:
    Path("engine.py").write_text(
        "def train_epoch(train):\n    for _ in range(500):\n        train()\n", encoding="utf-8"
    )
    forecast = of_script("""
from engine import train_epoch
for epoch in range(20):
    train_epoch(train)
    with torch.no_grad():
        model(torch.zeros(16_384, 1024, device="cuda"))
""")
    assert used(forecast) > 2 * rows(16_384)
    assert forecast.seen["evaluation"] and any("engine.py:2" in note for note in forecast.notes)
    assert not Path("__pycache__").exists()


@pytest.mark.parametrize("is_editable", [False, True], ids=["path", "editable"])
def test_so_is_a_loop_of_the_users_package_in_another_folder(
    of_script: Predict, tmp_path_factory: pytest.TempPathFactory, is_editable: bool
) -> None:
    folder = tmp_path_factory.mktemp("src")
    text = "def train_epoch(train):\n    for _ in range(500):\n        train()\n"
    (folder / "own_engine.py").write_text(text, encoding="utf-8")
    editable = f"""
from importlib.util import spec_from_file_location
class EditableFinder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "own_engine":
            return spec_from_file_location(name, {str(folder / "own_engine.py")!r})
sys.meta_path.append(EditableFinder)
"""
    forecast = of_script(f"""
import sys
{editable if is_editable else f"sys.path.insert(0, {str(folder)!r})"}
from own_engine import train_epoch
for epoch in range(20):
    train_epoch(train)
    with torch.no_grad():
        model(torch.zeros(16_384, 1024, device="cuda"))
""")
    assert used(forecast) > 2 * rows(16_384) and forecast.reasons == ()
    assert any("own_engine.py:2" in note for note in forecast.notes)


def test_a_script_that_is_stopped_says_so(of_script: Predict) -> None:
    forecast = of_script("""
def fit():
    train()
    fit()
fit()
""")
    assert forecast.fits["h200"] is None
    assert any("was stopped after these training steps" in reason for reason in forecast.reasons)


@pytest.mark.parametrize(
    "text",
    [
        "[train() for step in range(1000)]",
        "list(map(train, [64] * 1000))",
        "for _ in zip(range(99)): train()",
    ],
)
def test_what_follows_a_loop_that_cannot_be_ended_leaves_the_answer_open(
    of_script: Predict, text: str
) -> None:
    forecast = of_script(f"""
{text}
with torch.no_grad():
    model(torch.zeros(65_536, 1024, device="cuda"))
""")
    assert forecast.fits["h200"] is None
    assert any("train.py:14" in reason for reason in forecast.reasons)


def test_turns_of_a_comprehension_that_are_not_run_leave_the_answer_open(of_script: Predict) -> None:
    forecast = of_script("losses = [train(count) for count in [64] * 9 + [65_536]]")
    assert forecast.fits["h200"] is None
    assert any("train.py:11" in reason for reason in forecast.reasons)


def test_every_size_of_a_list_counts(of_script: Predict) -> None:
    forecast = of_script("for count in [64] * 5 + [65_536]:\n    train(count)\n")
    assert used(forecast) > 2 * rows(65_536)


def test_losses_in_a_list_are_no_reason(of_script: Predict) -> None:
    forecast = of_script("""
losses = []
for step in range(5000):
    train()
    losses.append(torch.zeros(1, device="cuda"))
""")
    assert not forecast.reasons and forecast.fits["h200"]


def test_a_long_loop_that_only_repeats_itself_is_ended(of_script: Predict) -> None:
    forecast = of_script("""
from pinchpoint.backends.torch.fake import progress
progress.LATE_OPERATIONS = 2_000  # instead of 60,000, which take long
for step in range(100):
    train()
x = torch.zeros(1, device="cuda")
for turn in range(200_000):
    x.add_(1)
model(torch.zeros(16_384, 1024, device="cuda"))
""")
    assert used(forecast) > 2 * rows(16_384)
    assert any("only repeat themselves" in note for note in forecast.notes)


BIG = """
def evaluate():
    with torch.no_grad():
        model(torch.zeros(16_384, 1024, device="cuda"))
"""


@pytest.mark.parametrize(
    ("loop", "condition", "increment", "steps"),
    [
        ("while step < 5000:", "step % 1000 == 0", "before", 3),
        ("while True:", "step > 500", "before", 3),
        # The counter jumps at the end of an ordinary turn, and then to its last value.
        ("while step < 500:", "step == 300", "after", 6),
        ("for step in itertools.count():", "step == 500", "none", 3),
    ],
)
def test_turns_with_other_values_of_a_counter_are_run(
    of_script: Predict, loop: str, condition: str, increment: str, steps: int
) -> None:
    before, after = ("step += 1" if increment == place else "pass" for place in ("before", "after"))
    forecast = of_script(f"""{BIG}
import itertools
step = 0
{loop}
    train()
    {before}
    if {condition}:
        evaluate()
        if {loop == "while True:"}:
            break
    {after}
""")
    assert used(forecast) > 2 * rows(16_384) and forecast.reasons == ()
    assert forecast.seen == {"training_steps": steps, "inference_calls": 1, "evaluation": True}


def test_a_counter_is_not_taken_further_than_its_loops_go(of_script: Predict) -> None:
    text = """
from torch.utils.data import DataLoader
class Trainer:
    def __init__(self):
        self.step = 0
    def fit(self, batches):
        for epoch in range(10):
            for i, x in enumerate(batches):
                train(len(x))
                self.step += 1
                if self.step == {} or i == 70:
                    evaluate()
Trainer().fit(DataLoader(torch.zeros(64 * 64, 1024), batch_size=64))
"""
    reached, not_reached = (of_script(BIG + text.format(step)) for step in (600, 700))
    assert used(reached) > 2 * rows(16_384) > used(not_reached)
    assert reached.reasons == not_reached.reasons == ()


def test_a_size_that_follows_from_a_counter_is_that_of_its_last_value(of_script: Predict) -> None:
    forecast = of_script("""
tokens = 0
while tokens < 6400:
    train(64 * (1 + tokens // 640))
    tokens += 64
""")
    assert used(forecast) > 2 * WEIGHTS + 3 * rows(640)


@pytest.mark.parametrize(
    ("start", "change", "condition"),
    [
        ("0", "+= torch.zeros(64).size(0)", "state.left >= 6400"),
        ("200", "-= 1", "state.left == 0"),
        ("200", "= state.left - 1", "state.left < 3"),
    ],
)
def test_counters_that_grow_by_a_size_or_count_down_are_followed(
    of_script: Predict, start: str, change: str, condition: str
) -> None:
    forecast = of_script(f"""{BIG}
class State:
    left = 0
state = State()
state.left = {start}
for epoch in range(500):
    for step in range(100):
        train()
    state.left {change}
    if {condition}:
        evaluate()
""")
    assert used(forecast) > 2 * rows(16_384) and forecast.reasons == ()


def test_a_sum_of_tensors_is_not_computed_in_place(of_script: Predict) -> None:
    forecast = of_script("""
x, y = (torch.zeros(65_536, 1024, device="cuda") for _ in range(2))
first = x
x = x + y
train(), train()
""")
    assert used(forecast) >= 3 * rows(65_536)


@pytest.mark.parametrize("size", ["schedule.get(step, 64)", "65_536 if step in {1000, 1500} else 64"])
def test_keys_of_a_schedule_are_reached(of_script: Predict, size: str) -> None:
    forecast = of_script(f"""
schedule = {{0: 64, 1000: 65_536, 1500: 128}}
for step in range(3000):
    train({size})
""")
    assert used(forecast) > 2 * rows(65_536) and forecast.reasons == ()


@pytest.mark.parametrize(
    ("stages", "size"),
    [
        ("[Stage(64), Stage(64), Stage(64), Stage(65_536), Stage(64)]", "stage.rows"),
        ("[('a', 64), ('b', 64), ('c', 64), ('d', 65_536), ('e', 64)]", "stage[1]"),
        ("[dict(rows=64, lr=step / 100) for step in range(40)] + [dict(rows=65_536, lr=0)]", "stage['rows']"),
    ],
    ids=["objects", "tuples", "dicts"],
)
def test_the_largest_stage_of_a_list_counts(of_script: Predict, stages: str, size: str) -> None:
    forecast = of_script(f"""
from dataclasses import dataclass
@dataclass
class Stage:
    rows: int
for stage in {stages} + [("last", 64)] * 0:
    for step in range(100):
        train({size})
""")
    assert used(forecast) > 2 * rows(65_536)


KEEP = """
kept = []
for step in range(10_000):
    train()
    if step % 500 == {}:
        {}
model(torch.zeros(4096, 1024, device="cuda"))
"""


@pytest.mark.parametrize("when", [0, 499])
def test_memory_that_some_turns_keep_is_counted_for_all_of_them(of_script: Predict, when: int) -> None:
    forecast = of_script(KEEP.format(when, 'kept.append(torch.zeros(1024, 1024, device="cuda"))'))
    assert used(forecast) == pytest.approx(2 * WEIGHTS + 20 * rows(1024) + 2 * rows(4096), rel=0.01)
    assert any("keep 4.00 MiB each: this was added for" in note for note in forecast.notes)
    assert forecast.reasons == ()


def test_memory_that_later_turns_replace_is_not_growth(of_script: Predict) -> None:
    forecast = of_script(KEEP.format(0, 'kept = [torch.zeros(1024, 1024, device="cuda")]'))
    assert used(forecast) == pytest.approx(2 * WEIGHTS + rows(1024) + 2 * rows(4096), rel=0.01)
    freed = of_script(
        KEEP.format(0, 'kept.append(torch.zeros(1024, 1024, device="cuda"))') + "kept.clear()\n"
    )
    assert freed.reasons == ()


def test_memory_that_some_turns_keep_irregularly_leaves_the_answer_open(of_script: Predict) -> None:
    keep = 'kept.append(torch.zeros(1024 + len(kept), 1024, device="cuda"))'
    forecast = of_script(KEEP.format(0, keep))
    assert forecast.fits["h200"] is None and "with turns of the loop at train.py:13" in forecast.reasons[0]


@pytest.mark.parametrize("every", [10, 2])
def test_turns_that_change_what_later_ones_allocate_are_all_run(of_script: Predict, every: int) -> None:
    forecast = of_script(f"""
count = 64
for epoch in range(100):
    for _ in range(50):
        train(count)
    if epoch % {every} == {every - 1}:
        count = min(2 * count, 16_384)
""")
    if every == 10:
        assert used(forecast) > 2 * WEIGHTS + 2 * rows(16_384) and not forecast.reasons
    else:
        assert "change what later ones allocate, and 49 of them were not run" in forecast.reasons[0]


def test_a_loop_that_an_unknown_value_leaves_before_turns_that_differ_is_open(of_script: Predict) -> None:
    forecast = of_script("""
best, bad = 1e9, 0
count = 64
for epoch in range(100):
    loss = train(count)
    if loss < best:
        best, bad = loss, 0
    else:
        bad += 1
        if bad == 3:
            break
    if epoch % 10 == 9:
        count = 2 * count
""")
    assert forecast.fits["h200"] is None
