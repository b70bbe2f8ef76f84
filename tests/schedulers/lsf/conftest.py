"""Small commands of an LSF, written for one test and put on its PATH."""

import os
from pathlib import Path

import pytest


class Commands:
    """Each writes down how it was called."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._log = folder / "calls"

    def add(self, name, script):
        """A command; `script` is bash, and sees its arguments."""
        path = self.folder / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >> {self._log}\n{script}\n')
        path.chmod(0o755)

    def say(self, name, out="", *, err="", code=0):
        """A command that always says the same."""
        for kind, text in (("out", out), ("err", err)):
            (self.folder / f"{name}.{kind}").write_text(text)
        said = self.folder / name
        self.add(name, f"cat {said}.out; cat {said}.err >&2; exit {code}")

    @property
    def calls(self):
        return self._log.read_text().splitlines() if self._log.exists() else []


@pytest.fixture
def commands(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat", "sleep"):  # and none of a scheduler that may be installed
        (folder / name).symlink_to(
            next(filter(os.path.exists, (f"/bin/{name}", f"/usr/bin/{name}")))
        )
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("LSB_DEFAULTQUEUE", raising=False)
    return Commands(folder)
