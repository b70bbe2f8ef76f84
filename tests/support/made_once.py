"""What takes long to make, and that all processes of a test session share."""

import fcntl
import os
import tempfile
from pathlib import Path


def session_folder(tmp_path_factory):
    """The folder that all processes of this session have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(root, name, fill):
    """The folder of this name in `root`; the first to ask fills it, and others wait meanwhile.

    Where `fill` raises nothing counts as made, and the next to ask tries anew.
    """
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            new = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
            fill(new)
            new.rename(folder)
    return folder
