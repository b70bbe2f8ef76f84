"""Heavy packages that are imported before the ranks are forked: found in the user's files, none of
which is run."""

import pytest
from rank_places import environment_of, place

from hpcdist.job.preload import _NOT_READ, read_program


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Heavy imports of main.py, given the texts of files, in whose names __in__ stands for a
    folder."""
    monkeypatch.setenv("THERE", "1")

    def find(main, **texts):
        for name, text in {"main": main, **texts}.items():
            path = tmp_path / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_program(tmp_path / "main.py").heavy

    return find


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ("import os", []),
        ("import torch", ["torch"]),
        ("def main():\n    import torch", ["torch"]),
        ("import numpy as np, PIL.Image", ["numpy", "PIL.Image"]),
        ("import torch\ntorch.optim.SGD", ["torch", "torch._dynamo"]),
        ("import torch\nexec(open('configurator.py').read())", ["torch"]),  # nanoGPT's way
    ],
)
def test_what_the_script_imports(found, main, expected):
    assert found(main) == expected


@pytest.mark.parametrize(
    ("main", "texts"),
    [
        ("from lib import steps", {"lib__in__steps": "import torch"}),
        (
            "import lib.deep.a",
            {"lib__in__deep__in__a": "from ..b import c", "lib__in__b": "import torch"},
        ),
        ("import a", {"a": "import b", "b": "import a\nimport torch"}),
    ],
)
def test_what_the_users_own_modules_import(found, main, texts):
    assert found(main, **texts) == ["torch"]


@pytest.mark.parametrize(
    "text",
    [
        "def later():\n    import torch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "import torch (",
    ],
)
def test_what_own_modules_import_later_or_never_is_left_alone(found, text):
    assert found("import steps", steps=text) == []


def test_a_module_of_the_users_by_the_name_of_a_heavy_package_leaves_all_to_the_ranks(found):
    assert found("import torch, numpy", pandas="x = 1") == []


SETTINGS = [
    "os.environ['OMP_NUM_THREADS'] = '4'",
    "from os import environ as env\nenv['A'] = '4'",
    "os.environ.setdefault('TORCH_LOGS', str(args.logs))",
    "os.environ |= {'NCCL_DEBUG': '4'}",
    "del os.environ['TORCH_LOGS']",
    "for name in args.names:\n    os.environ[name] = '1'",
    "from dotenv import load_dotenv\nload_dotenv()",
    "from lib.own import x",
]


@pytest.mark.parametrize("text", SETTINGS)
def test_heavy_packages_are_left_to_the_ranks_where_an_own_file_sets_what_they_read(found, text):
    own = {"lib__in____init__": "import os\nos.environ['A'] = '1'", "lib__in__own": ""}
    assert found(f"import os\n{text}\nimport torch", **own) == []


@pytest.mark.parametrize(
    "text",
    [
        "os.environ['MASTER_ADDR'] = 'localhost'",
        "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']",
        "os.environ.setdefault('THERE', input())",
        "env = os.environ.copy()\nenv['A'] = '1'",
    ],
)
def test_what_no_heavy_package_reads_changes_nothing(found, text):
    assert found(f"import os\n{text}\nimport torch, lightning") == ["torch", "lightning"]


def test_the_packages_of_a_module_are_read_and_come_before_it(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import os")
    train = tmp_path / "package" / "train.py"
    train.write_text("from .steps import step")
    (tmp_path / "package" / "steps.py").write_text("import torch")
    assert read_program(train, tmp_path).heavy == ["torch"]
    (tmp_path / "package" / "__init__.py").write_text("import os\nos.environ['TORCH_LOGS'] = 'a'")
    train.write_text("import torch\nfrom .steps import step")
    assert read_program(train, tmp_path).heavy == []


def test_of_a_program_with_too_many_files_nothing_is_known(found):
    many = {f"own{number}": "import scipy" for number in range(301)}
    imports = "".join(f"import {name}\n" for name in many)
    assert found(f"import torch\n{imports}", **many) == []


def test_variables_that_each_rank_gets_concern_nothing_that_is_preloaded():
    assert all(name.startswith(_NOT_READ) for name in environment_of(place(), interface=None))
