"""A driver of two GPUs whose figures are known: NVML's library, compiled here."""

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def driver(tmp_path_factory, missing):
    """A folder for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc")
    if compiler is None:
        missing("there is no C compiler")
    library = tmp_path_factory.mktemp("driver") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("driver.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library.parent
