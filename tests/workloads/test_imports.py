"""What is imported before the ranks are forked: found in the user's files, none of which is run."""

import pytest

from hpcdist.workloads.imports import heavy_imports


@pytest.fixture
def found(tmp_path):
    """Heavy imports of main.py, given the texts of files."""

    def find(main, **texts):
        for name, text in {"main": main, **texts}.items():
            path = tmp_path / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return heavy_imports(tmp_path / "main.py")

    return find


TORCH = ["torch", "torch.distributed"]


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ("import os", []),
        ("import torch", TORCH),
        ("def main():\n    import torch", TORCH),
        ("from torch.nn import Linear", ["torch.nn", "torch.distributed"]),
        ("import numpy as np, PIL.Image", ["PIL.Image", "numpy"]),
        ("import torch\ntorch.optim.SGD", [*TORCH, "torch._dynamo"]),
    ],
)
def test_what_the_script_imports(found, main, expected):
    assert found(main) == expected


@pytest.mark.parametrize(
    ("main", "texts"),
    [
        ("import steps", {"steps": "import torch"}),
        ("from lib import steps", {"lib__in__steps": "import torch"}),
        ("import lib.steps", {"lib__in____init__": "", "lib__in__steps": "import torch"}),
        ("import lib", {"lib__in____init__": "from .a import b", "lib__in__a": "import torch"}),
        (
            "import lib.deep.a",
            {"lib__in__deep__in__a": "from ..b import c", "lib__in__b": "import torch"},
        ),
        ("import a", {"a": "import b", "b": "import a\ntry:\n    import torch\nexcept E: 0"}),
    ],
)
def test_what_the_users_own_modules_import(found, main, texts):
    assert found(main, **texts) == TORCH


@pytest.mark.parametrize(
    "text",
    [
        "def later():\n    import torch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "import torch (",
        "from ...beyond import torch",
    ],
)
def test_what_own_modules_import_later_or_never_is_left_alone(found, text):
    assert found("import steps", steps=text) == []


def test_a_package_of_the_users_by_a_known_name_is_not_the_known_one(found):
    assert found("import torch", torch="x = 1") == []


def test_a_module_of_a_package_imports_relative_to_it(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("from .steps import step")
    (tmp_path / "package" / "steps.py").write_text("import torch")
    train = tmp_path / "package" / "train.py"
    assert heavy_imports(train, first_on_path=tmp_path) == TORCH
