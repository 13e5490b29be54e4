"""Private names of torch and JAX are used in one file each, which is where a new version is fixed."""

from __future__ import annotations

import pytest
from tests.contracts.source import FRAMEWORKS, Module, read_module

COMPAT = {
    "backends/torch/autograd_nodes.py",
    "backends/torch/compat.py",
    "backends/torch/compiled/compat.py",
    "backends/torch/fake/compat.py",
    "backends/torch/compiled/shortcuts.py",
    "backends/torch/ranks/compat.py",
    "backends/torch/recording/compat.py",
    "backends/jax/compat.py",
}


def test_private_names_of_others_stay_in_the_compat_modules(package: list[Module]) -> None:
    with_frameworks = [
        module
        for module in package
        if module.place not in COMPAT and FRAMEWORKS & {name.split(".")[0] for name in module.imports}
    ]
    assert len(with_frameworks) > 100
    assert [f"{module.place}, {name}" for module in with_frameworks for name in module.private_names] == []


@pytest.mark.parametrize(
    "source",
    [
        "from torch.utils._pytree import tree_map_only",
        "import torch._subclasses",
        "from torch.overrides import _get_current_function_mode_stack",
        "def f():\n    from jax._src import core",
        "import torch\ntorch._C._current_autograd_node()",
        "def f(func):\n    return func._schema.arguments",
        "def f(value):\n    return value._version",
        "def f(self):\n    return self._parameters",
        "library._destroy()",
        "patches.set(rnn_module, '_VF', functions)",
        "getattr(tensor, '_is_param', False)",
    ],
)
def test_the_check_refuses_a_private_name_of_another(source: str) -> None:
    assert read_module(source).private_names


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n def __init__(self):\n  self._size = 1\n def f(self):\n  return self._size, self.__dict__",
        "import torch\n_aten = torch.ops.aten\n_aten._to_copy.default(x)",
        "import torch\ntorch.ops.aten._unique2(x)",
        "import os\nos._exit(0)",
        "tensor._pinchpoint_op = 'mm'\ngetattr(tensor, '_pinchpoint_op', '')",
        "span._replace(least=0)",
        "from pinchpoint.reporting.sections._series import Series",
    ],
)
def test_the_check_allows_our_own_names_and_operators(source: str) -> None:
    assert read_module(source).private_names == ()
