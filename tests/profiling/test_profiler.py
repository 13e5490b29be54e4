"""What a Profiler sees of a training loop in this process, and that it changes nothing."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pinchpoint
from pinchpoint.core.records import Trace, TraceEvent, TracePhase
from pinchpoint.profiling.problems import find_problems

torch = pytest.importorskip("torch")


def train(steps: int = 4, *, act: Callable[[Any, Any], Any] | None = None, loader: Any = None) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters())
    batches = loader or [(torch.randn(6, 8), torch.randint(3, (6,))) for _ in range(steps)]
    for x, y in batches:
        optimizer.zero_grad()
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        if act is not None:
            act(out, loss)
    return model


def trace_of(run: Callable[[], Any], **options: Any) -> Trace:
    return pinchpoint.profile(run, **options)


def events(trace: Trace, kind: str) -> list[TraceEvent]:
    return [event for event in trace.events if event.kind == kind]


def line_with(text: str) -> int:
    lines = inspect.getsource(inspect.getmodule(line_with)).splitlines()  # pyright: ignore[reportArgumentType]
    return next(number for number, line in enumerate(lines, 1) if text in line and "line_with" not in line)


def test_a_loop_has_its_steps_and_phases() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randint(3, (24,)))
    trace = trace_of(lambda: train(loader=torch.utils.data.DataLoader(data, batch_size=6)))
    assert (trace.steps, trace.step_is, trace.ended) == (4, "optimizer step", "finished")
    names = [phase.name for phase in trace.phases]
    assert names[:4] == ["data", "forward", "backward", "optimizer"]
    assert sum(phase.share for phase in trace.phases) == pytest.approx(1)
    whole = sum(row["host_s"] for row in trace.timeline[1:])
    assert sum(phase.host_s for phase in trace.phases) == pytest.approx(whole)
    assert trace.loaders[0]["batches"] == 4  # the end of the data is not a batch
    assert trace.framework == "torch"


def test_a_call_without_gradients_is_an_evaluation() -> None:
    def run() -> None:
        model = train()
        with torch.no_grad():
            model(torch.zeros(2, 8))

        train(2)

    assert "evaluation" in [phase.name for phase in trace_of(run).phases]


def test_a_program_that_only_infers_counts_calls_of_its_model() -> None:
    model = torch.nn.Linear(4, 4)

    def run() -> None:
        with torch.inference_mode():
            for _ in range(5):
                model(torch.ones(2, 4))

    trace = trace_of(run)
    assert (trace.steps, trace.step_is) == (5, "module call")
    assert "evaluation" not in [phase.name for phase in trace.phases]


def test_a_manual_update_counts_backward_passes() -> None:
    weight = torch.ones(3, requires_grad=True)

    def run() -> None:
        for _ in range(3):
            (weight * 2).sum().backward()

    assert (trace_of(run).steps, trace_of(run).step_is) == (3, "backward pass")


WAITS: dict[str, Callable[[Any, Any], Any]] = {
    "Tensor.item": lambda out, loss: loss.item(),
    "bool of a tensor": lambda out, loss: 1 if loss > 0 else 0,
    "float of a tensor": lambda out, loss: float(loss),
    "int of a tensor": lambda out, loss: int(loss),
    "Tensor.tolist": lambda out, loss: out.tolist(),
    "Tensor.numpy": lambda out, loss: out.detach().numpy(),
    "Tensor.nonzero": lambda out, loss: out.nonzero(),
    "torch.nonzero": lambda out, loss: torch.nonzero(out),
    "torch.where of a condition": lambda out, loss: torch.where(out > 0),
    "mask index": lambda out, loss: out[out > 0],
    "printing a tensor": lambda out, loss: str(loss),
    "formatting a tensor": lambda out, loss: f"{loss:.3f}",
    "torch.unique": lambda out, loss: torch.unique(out),
}


@pytest.mark.parametrize("what", WAITS)
def test_a_wait_is_found_with_its_line_and_count(what: str) -> None:
    trace = trace_of(lambda: train(act=WAITS[what]))
    (event,) = events(trace, "wait")
    assert (event.what, event.count, event.steps) == (what, 4, 4)
    assert event.file == __file__
    assert event.line == line_with(f'"{what}": lambda')
    assert event.code.startswith(f'"{what}"')
    assert [problem.kind for problem in trace.problems if problem.kind == "wait"] == ["wait"]


def test_indexing_and_assignments_without_waiting_are_no_waits() -> None:
    def act(out: Any, loss: Any) -> None:
        values = out.detach().clone()
        values[0], values[values > 0] = 1.0, 0.0
        values[torch.tensor([0, 1])].sum()
        torch.where(values > 0, values, 1.0)

    assert events(trace_of(lambda: train(act=act)), "wait") == []


def test_waits_outside_the_loop_are_no_problem() -> None:
    def run() -> None:
        model = train(6)
        print(next(iter(model.parameters())).sum().item())

    assert trace_of(run).problems == ()


def test_cleaning_up_in_the_loop_is_a_problem() -> None:
    import gc

    trace = trace_of(lambda: train(act=lambda out, loss: gc.collect()))
    (problem,) = trace.problems
    assert problem.kind == "cleanup"
    assert problem.share is not None
    assert 0.5 < problem.share <= 1  # it also ran in the first step and after the last


def test_a_named_phase_has_its_own_time() -> None:
    def act(out: Any, loss: Any) -> None:
        with pinchpoint.phase("sampling"):
            torch.randn(10)

    assert "sampling" in [phase.name for phase in trace_of(lambda: train(act=act)).phases]
    with pinchpoint.phase("nothing"):  # without a profile
        pass


def test_the_function_is_left_after_its_steps_and_its_finally_runs() -> None:
    log = []

    def run() -> None:
        try:
            train(50)
        finally:
            log.append("finally")

    trace = trace_of(run, steps=3)
    assert (trace.ended, trace.steps, log) == ("stopped", 3, ["finally"])


def test_an_exception_is_raised_again_and_the_trace_kept() -> None:
    profiler = pinchpoint.Profiler()

    def run() -> None:
        with profiler:
            train(2)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        run()
    assert (profiler.trace.ended, profiler.trace.steps) == ("raised", 2)


def test_everything_is_put_back() -> None:
    before = {
        name: vars(torch.Tensor).get(name) for name in ("item", "__bool__", "__getitem__", "to", "copy_")
    }
    torch.optim.Adam(
        [torch.ones(1, requires_grad=True)]
    )  # torch changes Adam.step when it builds the first one
    call, step, backward = torch.nn.Module.__call__, torch.optim.Adam.step, torch.autograd.backward
    trace_of(train)
    assert {name: vars(torch.Tensor).get(name) for name in before} == before
    assert (torch.nn.Module.__call__, torch.autograd.backward) == (call, backward)
    assert torch.optim.Adam.step is step
    import torch.optim.optimizer as optimizer

    assert not optimizer._global_optimizer_pre_hooks
    assert not optimizer._global_optimizer_post_hooks


@pytest.mark.parametrize("light", [False, True])
def test_the_weights_are_bit_identical_to_a_plain_run(light: bool) -> None:
    def act(out: Any, loss: Any) -> None:
        loss.item()
        out[out > 0].sum()

    results = []
    plain = train(8, act=act)
    trace_of(lambda: results.append(train(8, act=act)), light=light)
    for a, b in zip(plain.state_dict().values(), results[0].state_dict().values(), strict=True):
        assert torch.equal(a, b)


class _Noisy(torch.utils.data.Dataset):
    """Items that are drawn by the worker that loads them."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.randn(8) + index, torch.randint(3, ())


@pytest.mark.parametrize("light", [False, True])
def test_random_numbers_of_dropout_shuffling_and_workers_are_those_of_a_plain_run(light: bool) -> None:
    def run() -> list[Any]:
        torch.manual_seed(3)
        layers = (torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(16))
        model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for x, y in torch.utils.data.DataLoader(_Noisy(), batch_size=4, shuffle=True, num_workers=1):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [*model.state_dict().values(), torch.rand(3)]

    observed: list[Any] = []
    plain = run()
    trace = trace_of(lambda: observed.extend(run()), light=light)
    assert trace.steps == 6
    assert all(torch.equal(a, b) for a, b in zip(plain, observed, strict=True))


def test_workers_of_a_loader_are_not_observed() -> None:
    data = [torch.ones(8) * i for i in range(8)]

    def run() -> None:
        model, seen = torch.nn.Linear(8, 1), []
        for batch in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, collate_fn=_collate):
            seen.append(model(batch))

    trace = trace_of(run)
    assert trace.steps == 2
    assert trace.loaders[0]["workers"] == 1
    assert events(trace, "wait") == []


def _collate(items: list[Any]) -> Any:
    assert torch.Tensor.item is torch.Tensor.__mro__[1].item, "a worker must run the plain function"
    items[0].sum().item()
    return torch.stack(items)


def problems(trace: Trace, kind: str) -> list[Any]:
    return [problem for problem in trace.problems if problem.kind == kind]


def test_graphs_that_are_kept_are_found_with_who_holds_them() -> None:
    losses, total = [], 0

    def act(out: Any, loss: Any) -> None:
        nonlocal total
        losses.append(loss)
        total = total + loss

    def run() -> None:
        kept = losses  # a local name of a running function
        train(10, act=act)
        del kept

    (problem,) = problems(trace_of(run), "growth")
    assert "the list kept (" in problem.what
    assert "in run()" in problem.what
    assert problem.line == line_with("loss.backward()")
    assert problem.count >= 6


def test_detached_values_and_the_last_loss_are_no_growth() -> None:
    losses: list[Any] = []
    trace = trace_of(lambda: train(10, act=lambda out, loss: losses.append(loss.detach())))
    assert problems(trace, "growth") == []


def test_looking_for_holders_does_not_keep_tensors_alive() -> None:
    import weakref

    graphs, references = [], []

    def run() -> None:
        weight = loss = None
        for _ in range(12):
            weight = torch.ones(2, requires_grad=True)
            loss = weight.sum()
            graphs.append(loss)
            references.append(weakref.ref(weight))
            loss.backward()
        del weight, loss
        graphs.clear()
        assert all(reference() is None for reference in references)

    assert problems(trace_of(run), "growth")


def test_what_is_rebuilt_in_the_loop_is_found_and_its_parts_are_not() -> None:
    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())

    def act(out: Any, loss: Any) -> None:
        Loss()
        torch.nn.MSELoss()

    trace = trace_of(lambda: train(6, act=act))
    assert sorted(event.what for event in events(trace, "rebuild")) == ["Loss", "MSELoss"]
    assert {problem.line for problem in problems(trace, "rebuild")} == {
        line_with("        Loss()"),
        line_with("torch.nn.MSELoss()"),
    }
    assert problems(trace_of(lambda: train(6)), "rebuild") == []


def test_what_a_library_builds_in_its_forward_pass_is_not_the_users_fault() -> None:
    names: dict[str, Any] = {"torch": torch}
    text = (
        "class Head(torch.nn.Module):\n    def forward(self, x):\n        return torch.nn.MSELoss()(x, x)\n"
    )
    exec(compile(text, "/x/site-packages/heads/head.py", "exec"), names)
    head = names["Head"]()
    assert problems(trace_of(lambda: train(6, act=lambda out, loss: head(out))), "rebuild") == []


def test_the_step_of_an_optimizer_that_is_built_again_ends_a_step() -> None:
    def run() -> None:
        weight = torch.nn.Parameter(torch.ones(3))
        for _ in range(6):
            optimizer = torch.optim.SGD([weight], lr=0.1)
            weight.square().sum().backward()
            optimizer.step()

    trace = trace_of(run)
    assert trace.steps == 6
    assert [problem.count for problem in problems(trace, "rebuild")] == [5]


def test_gradients_that_a_closure_computes_in_the_step_count() -> None:
    def run() -> None:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.LBFGS([weight], max_iter=3)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (weight - 2).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    assert trace_of(run).without_gradient == ()


def test_a_recorder_is_gone_when_its_trace_is_read() -> None:
    import gc
    import weakref

    with pinchpoint.Profiler() as profiler:
        train(2)
    reference = weakref.ref(profiler._recorder)  # pyright: ignore[reportPrivateUsage]
    assert profiler.trace.steps == 2
    del profiler
    gc.collect()
    assert reference() is None


def test_the_graphs_of_a_step_with_two_backward_passes_are_those_of_one_step() -> None:
    kept = []

    def run() -> None:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(12):
            for _ in range(2):
                loss = weight.square().sum()
                loss.backward()
                kept.append(loss)
            optimizer.step()

    (problem,) = problems(trace_of(run), "growth")
    assert 6 <= problem.count <= 12


def test_a_kept_loss_is_found_if_a_scaled_one_has_the_backward_pass() -> None:
    def run() -> None:
        losses = []
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(10):
            loss = weight.square().sum()
            (loss * 1024).backward()
            optimizer.step()
            losses.append(loss)

    (problem,) = problems(trace_of(run), "growth")
    assert "the list losses (" in problem.what


def test_what_only_the_first_step_waits_for_is_no_cost_of_the_others() -> None:
    wait = TraceEvent("wait", "Tensor.item", "a.py", 3, 5, 5, 2.04, 2.0, "other", first_s=2.0)
    sample = trace_of(lambda: train(2))
    phases = (TracePhase("forward", 0.4, 1.0),)
    trace = replace(sample, device="cuda", steps=5, events=(wait,), phases=phases)
    (problem,) = find_problems(trace)
    assert problem.share == pytest.approx(0.1)


def test_the_validation_of_a_distribution_is_named_and_can_be_switched_off() -> None:
    trace = trace_of(
        lambda: train(4, act=lambda out, _: torch.distributions.Categorical(logits=out, validate_args=True))
    )
    (problem,) = problems(trace, "wait")
    assert "in the validation of torch.distributions" in problem.what
    assert problem.hint.startswith("Pass validate_args=False to the distribution.")


def test_a_parameter_without_gradient_is_named() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.cut = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.used(self.cut(x).detach())

    def run() -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    trace = trace_of(run)
    assert [row["name"] for row in trace.without_gradient] == ["Net.cut.weight", "Net.cut.bias"]
    assert "Net.cut.weight, Net.cut.bias never get a gradient." in [
        problem.what for problem in trace.problems
    ]


def test_the_same_data_copied_again_is_told_from_new_data() -> None:
    data = torch.ones(64, 4)
    changing = torch.zeros(4)

    def act(out: Any, loss: Any) -> None:
        data[8:16].to("meta")
        changing.add_(1)
        changing.to("meta")
        torch.ones(16).to("meta")

    trace = trace_of(lambda: train(6, act=act))
    same, changed, new = sorted(events(trace, "copy"), key=lambda event: event.line)
    assert (same.what, same.count, same.repeated, same.bytes) == ("cpu -> meta", 6, 5, 6 * 8 * 4 * 4)
    assert (changed.repeated, new.repeated) == (0, 0)
    assert [problem.line for problem in problems(trace, "copy again")] == [same.line]
    assert "host to device" in [phase.name for phase in trace.phases]


def test_a_copy_to_the_host_would_wait() -> None:
    trace = trace_of(lambda: train(act=lambda out, loss: (out.cpu(), out.to("cpu"))))
    assert {event.what for event in events(trace, "wait")} == {"Tensor.cpu"}


def test_compiled_code_is_the_same_and_a_recompilation_has_its_reason() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def compute(x: Any, mode: int) -> Any:
        y = model(x).to(torch.float64)
        return torch.where(y > 0, y, torch.tensor(2.0, dtype=torch.float64))[0] * mode

    compiled = torch.compile(compute, backend="eager", fullgraph=True, dynamic=False)

    def run() -> None:
        for mode in (1, 1, 2, 3):
            compiled(torch.ones(2, 4), mode).sum().backward()

    trace = trace_of(run)
    assert [event.count for event in events(trace, "compile")] == [1]
    (event,) = events(trace, "recompile")
    assert (event.what, event.count) == ("compute", 2)
    assert "mode" in event.detail
    assert event.file == __file__


def test_growth_is_the_slope_of_memory_that_keeps_growing() -> None:
    from pinchpoint.profiling.assembly import growth_per_step

    assert growth_per_step([100 + 7 * step for step in range(40)]) == 7
    assert growth_per_step([100, 200, 300, *[400] * 40]) == 0
    assert growth_per_step([500 + (step * 37) % 11 for step in range(60)]) == 0
    assert growth_per_step([1, 2, 3]) is None


def test_a_chrome_trace_holds_phases_and_events_and_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "chrome.json"
    pinchpoint.profile(lambda: train(5, act=lambda out, loss: loss.item()), chrome_trace=path)
    entries = json.loads(path.read_text())["traceEvents"]
    spans = [entry for entry in entries if entry["ph"] == "X"]
    assert sum(entry["name"] == "backward" for entry in spans) == 5
    waits = [entry for entry in spans if entry["name"] == "Tensor.item"]
    assert [entry["args"]["line"].partition(".py:")[2] for entry in waits] == [
        str(line_with("pinchpoint.profile(lambda: train(5, act"))
    ] * 5
    assert all(entry["dur"] >= 0 for entry in spans)


def test_scripted_functions_are_compiled_as_before() -> None:
    def plain(x):  # pyright: ignore[reportMissingParameterType]
        return torch.where(x > 0, x, torch.zeros_like(x))

    before = torch.jit.script(plain)  # TorchScript's table of functions exists before the profile

    results = []

    def run() -> None:
        def mask(x):  # pyright: ignore[reportMissingParameterType]
            chosen = x > 0
            return torch.where(chosen, x, torch.zeros_like(x))[chosen].sum() + torch.nonzero(chosen).sum()

        results.append(torch.jit.script(mask)(torch.tensor([1.0, -1.0, 2.0])).item())

    trace_of(run)
    assert results == [3.0 + 2.0]
    assert before(torch.ones(2)).tolist() == [1.0, 1.0]


def test_functions_of_torch_are_pickled_as_before() -> None:
    import pickle

    functions = (torch.nonzero, torch.tensor, torch.where, torch.Tensor.item)
    pickled: list[bytes] = []
    with pinchpoint.Profiler():
        pickled.append(pickle.dumps((torch.nonzero, torch.tensor, torch.where, torch.Tensor.item)))
    assert pickle.loads(pickled[0]) == functions


def test_copies_of_sparse_tensors_and_inside_vmap_are_no_trouble() -> None:
    def run() -> None:
        torch.eye(3).to_sparse().to("meta")
        torch.vmap(lambda x: x.to("meta"))(torch.ones(2, 3))

    assert [event.repeated for event in events(trace_of(run), "copy")] == [0, 0]


def test_the_closure_of_an_optimizer_is_no_part_of_its_own_time() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=2)
    calls = []

    def closure() -> Any:
        optimizer.zero_grad()
        with pinchpoint.phase("inside"):
            calls.append(1)
        loss = (weight**2).sum()
        loss.backward()
        return loss

    def run() -> None:
        for _ in range(3):
            optimizer.step(closure)

    trace = trace_of(run)
    assert trace.steps == 3
    assert len(calls) >= 3
    assert {"forward", "backward", "optimizer", "inside"} <= {phase.name for phase in trace.phases}


@pytest.mark.traces_lines
def test_tensors_on_the_cpu_are_accounted_for_by_line() -> None:
    def scratch() -> Any:
        values = torch.zeros(1024, 1024)
        return values.sum()

    def run() -> None:
        weight = torch.ones(1024, 256, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        others = [torch.ones(6) for _ in range(4)]
        for _ in range(4):
            kept = torch.ones(1024, 1024)
            others.pop()  # freed in the step, but it is no weight, gradient, or state
            scratch()
            loss = (kept @ weight).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            del kept, loss

    memory = trace_of(run).memory
    assert memory is not None
    lines = {line["line"]: line for line in memory["lines"]}
    assert lines[line_with("kept = torch.ones(1024, 1024)")]["bytes"] == 4 * 2**20
    mib = 2**20
    # Alive before the step: the weights, their gradient, and the momentum, 1 MiB each.
    assert memory["before_bytes"] == {"weights": mib, "gradients": mib, "optimizer": mib}
    # At the peak, in the scratch function: these 3 MiB, the kept 4 MiB, and the 4 MiB of scratch.
    assert memory["allocated_bytes"] == pytest.approx(11 * mib, rel=0.01)
    assert lines[line_with("values = torch.zeros(1024, 1024)")]["bytes"] == 4 * mib
    assert sys.gettrace() is None


@pytest.mark.traces_lines
def test_with_two_optimizers_the_memory_of_a_whole_step_is_accounted_for() -> None:
    def run() -> None:
        weights = [torch.ones(8, requires_grad=True) for _ in range(2)]
        first, second = (torch.optim.SGD([weight], lr=0.1) for weight in weights)
        for _ in range(5):
            weights[0].sum().backward()
            first.step()
            large = torch.ones(1024, 1024)
            del large
            weights[1].sum().backward()
            second.step()
            larger = torch.ones(1024, 2048)
            del larger

    memory = trace_of(run).memory
    assert memory is not None
    assert memory["lines"][0]["line"] == line_with("larger = torch.ones(1024, 2048)")
    assert memory["lines"][0]["bytes"] == 8 * 2**20


def test_a_slow_loader_starves_the_loop_and_a_quick_one_does_not() -> None:
    def problems_of(seconds: float) -> list[str]:
        loader = {"file": "a.py", "line": 3, "workers": 0, "pinned": False, "batch_size": 8, "batches": 9}
        trace = replace(
            trace_of(lambda: train(2)),
            steps=11,
            events=(),
            phases=(TracePhase("data", 10 * seconds, 0.4), TracePhase("forward", 15 * seconds, 0.6)),
            loaders=({**loader, "host_s": 10 * seconds},),
        )
        return [problem.what for problem in find_problems(trace)]

    assert problems_of(0.1) == ["The loop waits for its data loader (0 workers) 40% of the time."]
    assert problems_of(0.0001) == []


@pytest.mark.traces_lines
def test_calls_of_a_model_before_training_are_not_taken_for_the_third_step() -> None:
    def run() -> None:
        model = torch.nn.Linear(4, 4)
        with torch.no_grad():
            for _ in range(6):
                model(torch.ones(1, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            batch = torch.ones(1 << 18, 4)
            model(batch).sum().backward()
            optimizer.step()

    memory = trace_of(run).memory
    assert memory is not None
    assert memory["allocated_bytes"] > 8 * 2**20  # the batch and the output have 4 MiB each


def test_models_are_not_kept_alive() -> None:
    import weakref

    def run() -> None:
        model = train(2)
        reference = weakref.ref(model)
        del model
        assert reference() is None

    trace_of(run)


def test_a_lazy_module_can_be_moved_while_it_is_observed() -> None:
    model = torch.nn.LazyLinear(2)
    with pinchpoint.Profiler():
        model.to("cpu")
        model(torch.ones(1, 3))
    assert model.weight.shape == (2, 3)
    model.to("cpu")
