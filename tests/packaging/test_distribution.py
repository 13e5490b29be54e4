"""The wheel and the sdist: what they contain, and what PyPI shows."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import pinchpoint

pytest.importorskip("hatchling", reason="hatchling is not installed")

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://example.org/owner/pinchpoint"
MAX_BYTES = 9_000_000  # of the wheel, which has about 5.5 MB, half of them weights of `density`


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    code = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]), b.build_sdist(sys.argv[1]))"
    process = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    wheel, sdist = process.stdout.split()[-2:]
    return {"wheel": folder / wheel, "sdist": folder / sdist}


@pytest.fixture(scope="module")
def metadata(built: dict[str, Path]) -> Message:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(wheel.read(name).decode())


@pytest.fixture(scope="module")
def hook() -> Any:
    spec = spec_from_file_location("metadata_hook", ROOT / "packaging" / "metadata_hook.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_wheel_has_the_package_its_data_and_nothing_else(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"pinchpoint", f"pinchpoint-{pinchpoint.__version__}.dist-info"}
    assert [
        name for name in names if "__pycache__" in name or "/tests/" in name or name.endswith(".pyc")
    ] == []
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in (source / "pinchpoint").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("pinchpoint/")} == files
    needed = ("py.typed", "reporting/assets/page.css", "reporting/assets/page.js", "forecasting/cards.json")
    assert {f"pinchpoint/{name}" for name in needed} <= set(names)
    assert built["wheel"].stat().st_size < MAX_BYTES


def test_the_sdist_can_build_and_test_itself(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt"}
    needed |= {"packaging/metadata_hook.py", "tests/conftest.py", "src/pinchpoint/py.typed", "action.yml"}
    assert needed <= names
    assert [name for name in names if "__pycache__" in name or name.startswith((".venv", "build/"))] == []


def test_twine_accepts_both(built: dict[str, Path]) -> None:
    pytest.importorskip("twine", reason="twine is not installed")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.values())]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_metadata_names_the_version_the_type_information_and_the_command(metadata: Message) -> None:
    assert metadata["Version"] == pinchpoint.__version__
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Requires-Python"] == ">=3.11"


def test_no_link_of_the_long_description_is_relative(metadata: Message) -> None:
    text = re.sub(r"^```.*?^```$", "", metadata.get_payload(), flags=re.MULTILINE | re.DOTALL)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert "# pinchpoint" in text
    assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link and link[0] != "#"] == []


README = """# Name

![A picture](docs/images/a.png)

See [`predict`](docs/toolkit/predict.md#use), [the top](#name), and [torch](https://pytorch.org).
[![badge](docs/b.svg)](docs/index.md)

```python
rows[0](x)  # [not](a/link)
```
"""


def test_with_an_address_links_lead_to_the_released_version(hook: Any) -> None:
    text = hook.long_description(README, f"{REPOSITORY}/", "v1.2.3")
    assert f"![A picture]({REPOSITORY}/raw/v1.2.3/docs/images/a.png)" in text
    assert f"[`predict`]({REPOSITORY}/blob/v1.2.3/docs/toolkit/predict.md#use)" in text
    badge = f"![badge]({REPOSITORY}/raw/v1.2.3/docs/b.svg)"
    assert f"[{badge}]({REPOSITORY}/blob/v1.2.3/docs/index.md)" in text
    assert "[the top](#name)" in text and "[torch](https://pytorch.org)" in text
    assert "rows[0](x)  # [not](a/link)" in text
    links = hook.urls(REPOSITORY, "v1.2.3")
    assert links["Source"] == REPOSITORY
    assert links["Changelog"] == f"{REPOSITORY}/blob/v1.2.3/CHANGELOG.md"


def test_without_an_address_links_become_text_and_pictures_are_left_out(hook: Any) -> None:
    text = hook.long_description(README, "", "v1.2.3")
    assert text.startswith("# Name\n\nSee `predict`, [the top](#name), and [torch](https://pytorch.org).\n")
    assert "docs/" not in text
    assert "rows[0](x)  # [not](a/link)" in text
    assert hook.urls("", "v1.2.3") == {}
