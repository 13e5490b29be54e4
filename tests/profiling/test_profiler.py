"""What a Profiler sees of a training loop in this process, and that it changes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import pinchpoint
from pinchpoint.core.records import Trace, TraceEvent

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
    assert [problem.kind for problem in trace.problems] == ["cleanup"]


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
