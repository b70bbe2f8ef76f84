"""A real container runtime, charliecloud's ch-run, and images for it, made of this machine's own
files: a root with nothing in it but mount points, at which the tests' own Python is seen."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hpcdist.base.files import user_cache

_ROOT = ("bin", "lib", "lib64", "sbin")
_MOUNT_POINTS = ("usr", "proc", "sys", "dev", "tmp", "etc", "opt")
_FILES = ("resolv.conf", "hosts", "passwd", "group")


def why_not_here():
    """What this machine lacks to start a container, in one sentence, or None."""
    if shutil.which("ch-run") is None:
        return "a container takes charliecloud's ch-run; `make test` says how to install it"
    done = subprocess.run(["unshare", "--user", "--mount", "true"], check=False)
    return "this machine allows no user namespaces" if done.returncode else None


def seen_inside():
    """The folders that the tests' Python is made of, without those in others."""
    site = Path(importlib.util.find_spec("torch").origin).parents[1]
    own = ("/usr", sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), str(site))
    found = []
    for folder in sorted(own, key=len):
        if not any(Path(folder).is_relative_to(other) for other in found):
            found.append(folder)
    return found


def make_image(folder, *more):
    """An image as a folder; `more` are further folders that can be mounted."""
    image = Path(folder)
    for name in _MOUNT_POINTS:
        (image / name).mkdir(parents=True, exist_ok=True)
    for name in _ROOT:
        if Path("/", name).is_symlink():
            (image / name).symlink_to(Path("/", name).readlink())
        else:
            (image / name).mkdir()
    for name in _FILES:
        (image / "etc" / name).touch()
    for path in (*seen_inside(), user_cache() / "carried", *more):
        (image / str(path).lstrip("/")).mkdir(parents=True, exist_ok=True)
    return image


def container(image, **keys):
    """The words by which a job runs in an image."""
    real = [f"/{name}" for name in _ROOT if not Path("/", name).is_symlink()]
    mounts = [*seen_inside(), *real, *keys.pop("mounts", ())]
    values = {"image": image, "mounts": f"[{','.join(mounts)}]"}
    values |= {"python": sys.executable, "runtime": "charliecloud"} | keys
    return [word for key, value in values.items() for word in ("--set", f"container.{key}={value}")]


@pytest.fixture
def image(tmp_path, missing):
    """An image in which what is in the test's folder is seen."""
    if lacking := why_not_here():
        missing(lacking)
    return make_image(tmp_path / "image", tmp_path / "work")
