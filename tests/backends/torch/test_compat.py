"""Private parts of torch, compared with torch's public interface."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="it is torch's private names")

from pinchpoint.backends.torch import compat  # noqa: E402


def test_the_scale_of_losses_is_the_scaler_s_before_its_first_use_after_it_and_after_an_overflow() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    assert float(compat.loss_scale(scaler)) == scaler.get_scale() == 2.0**10
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight])
    scaler.scale(weight * torch.inf).backward()
    assert float(compat.loss_scale(scaler)) == 2.0**10
    scaler.step(optimizer)
    scaler.update()
    assert float(compat.loss_scale(scaler)) == scaler.get_scale() == 2.0**9


def test_the_scale_of_losses_is_read_without_a_value_of_the_device() -> None:
    """A fake tensor has no value, so reading it raises."""
    with compat.fake_mode():
        scaler = torch.amp.GradScaler("cpu")
        assert compat.loss_scale(scaler).shape == ()
        scaler.scale(torch.ones(()))
        scale = compat.loss_scale(scaler)
        assert isinstance(scale, compat.FakeTensor) and scale.shape == ()
        with pytest.raises(RuntimeError, match="_local_scalar_dense"):
            scaler.get_scale()


def test_a_fake_tensor_of_the_factory_is_like_one_of_its_class() -> None:
    mode, host = compat.fake_mode(), torch.device("cpu")
    make = compat.fake_factory(mode, host)
    meta = torch.empty(2, 3, device="meta").t()
    made, plain = make(meta), compat.FakeTensor(mode, meta, host)
    assert type(made) is compat.FakeTensor and vars(made) == vars(plain)
    assert made.device == plain.device == host and compat.own_device(made) == host
    assert (made.shape, made.stride(), made.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert not made.requires_grad
    with mode:
        assert (made + plain).shape == (3, 2)


def test_the_precision_of_convolutions_is_read_by_its_new_name() -> None:
    before = compat.convolutions_use_tf32()
    with torch.backends.cudnn.flags(allow_tf32=not before):
        assert compat.convolutions_use_tf32() is not before
    assert compat.convolutions_use_tf32() is before
