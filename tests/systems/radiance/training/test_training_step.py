"""One iteration: micro-batches equal the whole batch, one scaler for both networks, averaged weights."""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from torch.nn.functional import smooth_l1_loss, softplus  # noqa: E402

from pinchpoint.systems.common.training.distributed import Ranks  # noqa: E402
from pinchpoint.systems.radiance.data.images import Images  # noqa: E402
from pinchpoint.systems.radiance.data.patches import Real  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.model.objective import Request  # noqa: E402
from pinchpoint.systems.radiance.model.superres import stack_pair  # noqa: E402
from pinchpoint.systems.radiance.settings import Settings  # noqa: E402
from pinchpoint.systems.radiance.training import cuda_graphs, training_step  # noqa: E402
from pinchpoint.systems.radiance.training.training_step import Stepper  # noqa: E402

CONFIG = FieldConfig.preset("tiny")
SETTINGS = Settings(
    preset="tiny",
    steps=10,
    size=32,
    samples=4,
    batch=5,
    superres=2,
    critic_width=4,
    sr_width=4,
    eval_images=0,
    ema=0.5,
)


def images(side: int = 64) -> Images:
    generator = torch.Generator().manual_seed(0)
    return Images("random", torch.randint(0, 256, (7, side, side, 3), dtype=torch.uint8, generator=generator))


def stepper(settings: Settings = SETTINGS, ranks: Ranks | None = None, *, side: int = 64) -> Stepper:
    return Stepper(CONFIG, settings, images(side), "cpu", ranks=ranks)


def gradients(result: Stepper) -> dict[str, Any]:
    named = [*result.critics.named_parameters(), *result.generator.named_parameters()]
    return {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}


def weights(result: Stepper) -> dict[str, Any]:
    named = [*result.critics.named_parameters(), *result.generator.named_parameters()]
    return {name: parameter.detach().clone() for name, parameter in named}


def far(value: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """Relative distance of each tensor from its target; NaN, which fails every comparison, if the target is
    zero.
    """
    assert set(value) == set(expected) and len(expected) > 20
    return {name: float((value[name] - one).norm() / one.norm()) for name, one in expected.items()}


def in_four_passes(result: Stepper, real: Real, request: Request) -> Any:
    """The generator's loss, (), with a separate pass of the super-resolution for every kind of image."""
    net, output = result.generator.superres, result.generator(request)
    assert net is not None and output.features is not None and real.high is not None
    low, features = output.low.detach(), output.features.detach()
    with torch.no_grad():
        plain = net(low, cover=output.acc)
    # Three of five patches have whole pixels: the first, third and fifth.
    unlike = smooth_l1_loss(net(real.low)[::2], real.high[::2], beta=0.02)
    pair_loss = smooth_l1_loss(net(low, features, request.u, cover=output.acc)[::2], plain[::2], beta=0.02)
    assert float(pair_loss.detach()) > 0.005, "large enough to affect the result"
    assert result.critics.high is not None
    of_low, of_high = (
        result.critics.low(output.low),
        result.critics.high(stack_pair(output.high, output.low[::2])),
    )
    return (
        softplus(-of_low).mean()
        + result.settings.sr_weight * softplus(-of_high).mean()
        + result.settings.sr_pairs * (unlike + pair_loss)
    )


def test_one_pass_of_the_super_resolution_has_the_loss_and_gradients_of_four_passes() -> None:
    result = stepper(replace(SETTINGS, size=64))
    assert result.generator.superres is not None
    with torch.no_grad():  # as after some training, when inputs besides the colours matter
        result.generator.superres.read.weight[:, 3:].mul_(60)
        result.generator.superres.view.codes.mul_(5)
        result.generator.superres.write.weight.mul_(10)
    real, request = result.real(1), result.request(1, "made")
    pitch = (
        (request.places[:, 1, 0] - request.places[:, 0, 0]) * 64 / 2
    )  # from ray to ray, in pixels of a render
    assert [round(float(one), 3) for one in pitch[::2]] == [1.0] * 3 and bool((pitch[1::2] > 1.9).all())
    expected = in_four_passes(result, real, request)
    expected.backward()
    slopes = {name: parameter.grad.clone() for name, parameter in result.generator.named_parameters()}  # pyright: ignore[reportOptionalMemberAccess]
    result.generator.zero_grad(set_to_none=True)
    assert float(result._generator_part(real, request)) == pytest.approx(float(expected.detach()), rel=1e-5)
    for name, parameter in result.generator.named_parameters():
        assert float((parameter.grad - slopes[name]).norm()) <= 1e-5 * float(slopes[name].norm()), name  # pyright: ignore[reportOptionalOperand]


def test_each_turn_runs_the_super_resolution_once_for_all_its_images() -> None:
    def batch_sizes(settings: Settings, turn: str) -> list[int]:
        result, value = stepper(settings), []
        assert result.generator.superres is not None
        result.generator.superres.register_forward_hook(lambda _net, _given, high: value.append(len(high)))
        getattr(result, turn)(1)
        return value

    assert batch_sizes(SETTINGS, "generate") == [
        4 * 5
    ]  # generated, generated and detached, without features, real
    assert batch_sizes(replace(SETTINGS, micro=2), "generate") == [4 * 2, 4 * 2, 4 * 1]
    assert batch_sizes(replace(SETTINGS, sr_pairs=0.0), "generate") == [5]
    assert batch_sizes(SETTINGS, "discriminate") == [5]
    assert batch_sizes(replace(SETTINGS, size=64), "generate") == [4 * 3]  # only those of whole pixels


@pytest.mark.parametrize("micro", [1, 2, 4])  # 5 images: the last part has 1 image
@pytest.mark.parametrize("step", [1, 2])  # with a penalty, and without
def test_a_batch_in_micro_batches_has_the_gradient_of_the_whole(micro: int, step: int) -> None:
    base, value = replace(SETTINGS, size=64, r1_every=2), []
    for settings in (base, replace(base, micro=micro)):
        result = stepper(settings)
        losses = [*result.discriminate(step), result.generate(step)]
        assert (float(losses[1]) > 0) == (step == 1)
        value.append((gradients(result), torch.stack(losses)))
    (whole, losses), (parts, others) = value
    assert torch.allclose(losses, others, rtol=1e-5)
    assert set(whole) == set(parts) and len(whole) > 20
    for name, gradient in whole.items():
        assert torch.allclose(
            parts[name], gradient, atol=1e-5 * float(gradient.abs().max()) + 1e-8, rtol=1e-3
        ), name


def test_a_short_last_micro_batch_with_full_weight_changes_the_gradient() -> None:
    """Dividing by the number of micro-batches would give this; the test above can tell the difference."""
    settings = replace(SETTINGS, micro=4)
    right, wrong = stepper(settings), stepper(settings)
    right.generate(1)
    wrong._parts = lambda: iter([(slice(0, 4), 0.5), (slice(4, 5), 0.5)])  # type: ignore[method-assign]
    wrong.generate(1)
    one, other = gradients(right), gradients(wrong)
    assert max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one) > 0.01


@pytest.mark.parametrize(
    ("memory", "chunk", "form"),
    [("checkpoint", 700, "folded"), ("deferred", 700, "folded"), ("none", None, "eager")],
)
def test_memory_chunk_and_form_do_not_change_losses_and_gradients(
    memory: str, chunk: int | None, form: str
) -> None:
    result = [stepper(), stepper(replace(SETTINGS, memory=memory, chunk=chunk, form=form))]
    # At step 3 no unit is so close to zero that rounding flips its activation.
    expected, value = (torch.stack([*one.discriminate(3), one.generate(3)]) for one in result)
    assert torch.allclose(value, expected, rtol=1e-5)
    # Compare gradients, not weights after a step: Adam divides a gradient by its size, so half of it would
    # give the same step.
    apart = far(gradients(result[1]), gradients(result[0]))
    assert all(share < 1e-4 for share in apart.values()), apart


def test_numbers_drawn_ahead_are_those_of_their_step_and_are_used_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, drawn = stepper(), list[int]()
    numbers = {number: result._first_request(number).places for number in (2, 3)}
    draw_request = training_step.draw_request

    def draw(*args: Any, step: int, **options: Any) -> Request:
        drawn.append(step)
        return draw_request(*args, step=step, **options)

    monkeypatch.setattr(training_step, "draw_request", draw)
    result.draw_ahead(2)
    assert drawn == [2]
    assert result._first_request(2).places.equal(numbers[2]) and drawn == [2]
    assert result._first_request(2).places.equal(numbers[2]) and drawn == [2, 2]
    result.draw_ahead(2)
    assert result._first_request(3).places.equal(numbers[3]) and drawn == [2, 2, 2, 3]
    result.draw_ahead(SETTINGS.steps + 1)
    assert len(drawn) == 4, "there is no such step"


def test_each_process_uses_its_own_part_of_a_common_draw() -> None:
    together = stepper(replace(SETTINGS, batch=4))
    halves = [stepper(replace(SETTINGS, batch=2), Ranks(rank, 2)) for rank in (0, 1)]
    whole = together.request(3, "made for the generator")
    parts = [one.request(3, "made for the generator") for one in halves]
    assert torch.equal(torch.cat([part.codes.app for part in parts]), whole.codes.app)
    assert torch.equal(torch.cat([part.draws.offsets for part in parts]), whole.draws.offsets)
    assert torch.equal(torch.cat([one.real(3).low for one in halves]), together.real(3).low)


@pytest.mark.parametrize(("batch", "whole"), [(3, [(0, 2), (1,)]), (1, [(0,), ()])])
def test_two_processes_take_the_same_step_as_one_with_all_images(
    batch: int, whole: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes are threads here. One has more patches of whole pixels than the other, or all of them."""
    settings = replace(SETTINGS, size=64, patch=32, superres=2, bound=1.0, whole=0.5, batch=batch, ranks=2)
    inputs: list[Any] = []

    def add_up() -> None:
        total = torch.stack(inputs).sum(0)
        for one in inputs:
            one.copy_(total)
        inputs.clear()

    met = threading.Barrier(2, add_up, timeout=600)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda one: (inputs.append(one), met.wait()))
    steppers = [stepper(settings, Ranks(rank, 2), side=128) for rank in (0, 1)]
    assert [one.request(1, "made").whole for one in steppers] == whole

    def step(one: Stepper) -> Any:
        try:
            return one.step(1)
        except BaseException:
            met.abort()  # otherwise the other one would wait for it
            raise

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(step, steppers)
    alone = stepper(replace(settings, batch=2 * batch, ranks=1), side=128)
    start, expected = weights(alone), alone.step(1)
    assert torch.equal(first, second) and torch.allclose(first, expected, rtol=1e-4)
    apart = far(gradients(steppers[0]), gradients(alone))  # averaged and clipped
    assert all(share < 1e-4 for share in apart.values()), apart
    moved = weights(steppers[0])
    assert all(torch.equal(other, moved[name]) for name, other in weights(steppers[1]).items())
    assert not any(torch.equal(moved[name], old) for name, old in start.items())


def test_a_resumed_run_takes_the_same_steps_to_the_bit() -> None:
    settings = replace(SETTINGS, size=64, patch=32, bound=1.0, batch=3, micro=2, optimizer="adam", r1_every=3)
    run = stepper(settings, side=128)
    for number in (1, 2):
        run.step(number)
    buffer = io.BytesIO()
    torch.save(run.state(), buffer)
    buffer.seek(0)
    again = stepper(settings, side=128)
    again.restore(torch.load(buffer))
    for number in (3, 4):
        expected, actual = run.step(number), again.step(number)
        assert torch.equal(actual, expected) and (float(expected[3]) > 0) == (number == 4)  # the next penalty
    assert run.averaged is not None and again.averaged is not None
    for one, other in (
        (run.generator, again.generator),
        (run.critics, again.critics),
        (run.averaged, again.averaged),
    ):
        state = other.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in one.state_dict().items())


def test_a_stepper_without_references_is_released_with_its_graphs_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_step, "uses_graphs", lambda settings, device: True)
    monkeypatch.setattr(cuda_graphs, "new_pool", lambda **_: cuda_graphs.Pool(None, None))
    result = stepper()
    state = weakref.ref(result)
    gc.collect()  # torch's first optimizer in a process leaves a reference cycle that would keep it
    gc.disable()  # otherwise cycles would be collected eventually, or too late for a full card
    try:
        del result
        assert state() is None
    finally:
        gc.enable()


def test_averaged_weights_follow_the_decay() -> None:
    result = stepper()
    before = [parameter.detach().clone() for parameter in result.generator.parameters()]
    result.step(1)
    assert result.averaged is not None
    decay = min(SETTINGS.ema, 1 / 10)
    for old, new, average in zip(
        before, result.generator.parameters(), result.averaged.parameters(), strict=True
    ):
        assert (
            torch.allclose(average, decay * old + (1 - decay) * new.detach(), atol=1e-7)
            and not average.requires_grad
        )
    assert (
        result.averaged_generator() is result.averaged
        and stepper(replace(SETTINGS, ema=0.0)).averaged_generator() is not result.averaged
    )


def test_fp16_has_one_saved_scaler_and_an_overflow_only_skips_the_step() -> None:
    settings = replace(SETTINGS, precision="fp16", batch=1, samples=2)
    result = stepper(settings)
    result.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, growth_interval=2)
    before = [parameter.detach().clone() for parameter in result.generator.parameters()]
    loss, norm, *_ = result.step(1).tolist()
    assert loss > 0 and norm == 0.0, "an overflow does not end the run"
    assert all(torch.equal(old, new) for old, new in zip(before, result.generator.parameters(), strict=True))
    state = result.state()
    assert state["scaler"]["scale"] == 2.0**59
    other = stepper(settings)
    other.restore(state)
    assert other.scaler.get_scale() == 2.0**59
    other.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    assert other.step(2).tolist()[1] > 0
    assert any(
        not torch.equal(old, new) for old, new in zip(before, other.generator.parameters(), strict=True)
    )


def test_a_vanishing_scale_or_a_nan_loss_stops_the_run() -> None:
    result = stepper(replace(SETTINGS, precision="fp16", batch=2))
    none, loss = torch.tensor(torch.inf), torch.tensor(1.0)
    assert float(result._reported_norm(none, loss)) == 0
    assert torch.isnan(result._reported_norm(none, torch.tensor(torch.nan)))
    result.scaler = torch.amp.GradScaler("cpu", init_scale=1e-6)
    result.scaler.scale(loss)  # the scale is created on first use
    assert torch.isnan(result._reported_norm(none, loss))


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_the_two_optimizers_have_their_own_learning_rates(optimizer: str) -> None:
    result = stepper(replace(SETTINGS, optimizer=optimizer, batch=2, lr=4e-4, lr_d=3e-5, warmup=2))
    result.step(1)
    assert result.optimizer_g.param_groups[0]["lr"] == pytest.approx(2e-4)
    assert result.optimizer_d.param_groups[0]["lr"] == pytest.approx(1.5e-5)


def test_the_optimizer_state_of_another_machine_is_used_with_the_kernels_of_this_one() -> None:
    one = stepper(replace(SETTINGS, optimizer="adam"))
    one.step(1)
    state = copy.deepcopy(one.state())
    for name in ("optimizer_g", "optimizer_d"):
        state[name] = {
            **state[name],
            "param_groups": [{**group, "fused": True} for group in state[name]["param_groups"]],
        }
    other = stepper(replace(SETTINGS, optimizer="adam"))
    other.restore(state)
    assert other.optimizer_g.param_groups[0]["fused"] is None and torch.equal(one.step(2), other.step(2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_from_a_cpu_can_be_resumed_in_fp16_on_a_gpu() -> None:
    settings = replace(SETTINGS, optimizer="adam", precision="fp16", steps=4)
    first = Stepper(CONFIG, settings, images(), "cpu")
    first.step(1)
    then = Stepper(CONFIG, settings, images().to("cuda"), "cuda")
    then.restore(first.state())
    assert bool(torch.isfinite(then.step(2)[0])) and then.optimizer_g.param_groups[0]["fused"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("superres", "precision", "form", "memory"),
    [
        (1, "fp32", "folded", "none"),
        (2, "fp32", "folded", "none"),
        (2, "fp16", "folded", "none"),
        (2, "bf16", "folded", "none"),
        (2, "bf16", "folded", "checkpoint"),
        (2, "fp32", "folded", "deferred"),
        (2, "fp32", "eager", "checkpoint"),
    ],
)
def test_replayed_turns_train_like_executed_ones(
    superres: int, precision: str, form: str, memory: str
) -> None:
    """The noise ends during the run, and one graph is used with and without it."""
    settings = replace(
        SETTINGS,
        steps=14,
        superres=superres,
        precision=precision,
        noise_until=0.5,
        lr=3e-4,
        lr_d=3e-4,
        form=form,
    )
    settings = replace(settings, bound=1.0 if superres == 2 else 0.0, r1_every=2, optimizer="adam")
    settings = replace(
        settings, memory=memory, chunk=None if memory == "none" else settings.batch * settings.patch**2 // 3
    )
    state = images() if superres == 2 else Images("random", images().pixels[:, ::2, ::2].contiguous())
    replayed, run = (
        Stepper(CONFIG, replace(settings, graphs=graphs), state.to("cuda"), "cuda")
        for graphs in (True, False)
    )
    assert replayed._turns is not None and run._turns is None
    for optimizer in (replayed.optimizer_g, replayed.optimizer_d, run.optimizer_g, run.optimizer_d):
        # Otherwise a gradient of pure rounding would cause a full step in a random direction.
        optimizer.param_groups[0]["eps"] = 1e-3
    start = weights(run)
    exact, near = (5e-3, 0.1) if precision == "fp32" else (5e-2, 0.5)
    for number in range(1, 15):
        value, expected = replayed.step(number), run.step(number)
        assert torch.allclose(value, expected, rtol=exact, atol=exact), number
    value, expected = (
        {name: one - start[name] for name, one in weights(result).items()} for result in (replayed, run)
    )
    apart = far(value, expected)  # relative to how far each weight has moved
    assert all(share < near for share in apart.values()), apart
    assert all(len(turn._recordings) == 1 for turn in replayed._turns)
