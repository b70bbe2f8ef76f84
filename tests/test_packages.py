"""Versions of installed packages."""

import subprocess
import sys
from importlib import metadata

import pytest

from hpcdist.packages import installed_version


@pytest.mark.parametrize(
    "package", ["torch", "torchvision", "pytorch-lightning", "Pytorch_Lightning", "submitit"]
)
def test_a_version_is_what_the_package_says_of_itself(package):
    assert installed_version(package) == metadata.version(package)


def test_what_is_not_installed_has_no_version():
    assert installed_version("no-such-package-anywhere") is None


def test_the_first_folder_of_the_path_wins_as_it_does_for_import(tmp_path, monkeypatch):
    (tmp_path / "submitit-99.1+local.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    assert installed_version("submitit") == "99.1+local"


def test_a_package_without_a_dist_info_folder_is_found_too(tmp_path, monkeypatch):
    egg = tmp_path / "oldfashioned.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: oldfashioned\nVersion: 0.3\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert installed_version("oldfashioned") == "0.3"


def test_asking_for_an_installed_package_needs_no_import_of_importlib_metadata():
    code = (
        "import sys; from hpcdist.packages import installed_version; "
        "assert installed_version('submitit'); assert 'importlib.metadata' not in sys.modules"
    )
    # -S would hide the packages; an editable install's finder imports no metadata.
    subprocess.run([sys.executable, "-c", code], check=True)
