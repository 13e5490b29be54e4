"""Patches: replaced attributes and environment variables are restored."""

from __future__ import annotations

from pinchpoint.backends.patches import Patches


def test_patches_restore_what_was_there_in_reverse_order() -> None:
    class Base:
        own = 1
        inherited = 2

    class Owner(Base):
        own = 3

    with Patches() as patches:
        assert patches.set(Owner, "own", 4) == 3
        patches.set(Owner, "own", 5)
        assert patches.set(Owner, "inherited", 6) == 2
        assert patches.set(Owner, "absent", 7) is None
        assert (Owner.own, Owner.inherited, Owner.absent) == (5, 6, 7)  # type: ignore[attr-defined]
    assert "inherited" not in vars(Owner) and "absent" not in vars(Owner)
    assert (Owner.own, Owner.inherited) == (3, 2)


def test_suspended_patches_show_the_previous_values_and_return() -> None:
    class Base:
        inherited = 1

    class Thing(Base):
        own = 2

    with Patches() as patches:
        patches.set(Thing, "own", 3)
        patches.set(Thing, "inherited", 4)
        with patches.suspended():
            assert (Thing.own, Thing.inherited) == (2, 1)
            assert "inherited" not in vars(Thing)
        assert (Thing.own, Thing.inherited) == (3, 4)
    assert (Thing.own, Thing.inherited) == (2, 1)
