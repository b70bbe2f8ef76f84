"""A project and a user, each with an hpcdist.yaml or none."""

from pathlib import Path

import pytest


class Profiles:
    """Writes the files; the tests are in the project's folder."""

    def __init__(self, folder):
        self.project_folder = folder / "project"
        self.user_folder = folder / "configuration" / "hpcdist"
        self.project_folder.mkdir()

    def project(self, text):
        return _write(self.project_folder, text)

    def user(self, text):
        return _write(self.user_folder, text)


def _write(folder: Path, text):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "hpcdist.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def profiles(tmp_path, monkeypatch, no_files_of_the_user):
    found = Profiles(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(found.project_folder)
    return found
