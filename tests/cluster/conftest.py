"""A project and a user, each with an hpcdist.yaml or none."""

import pytest


class Profiles:
    """Writes the project's file; the tests are in its folder."""

    def __init__(self, folder):
        self.project_folder = folder / "project"
        self.user_file = folder / "configuration" / "hpcdist" / "hpcdist.yaml"
        for path in (self.project_folder, self.user_file.parent):
            path.mkdir(parents=True)

    def project(self, text):
        path = self.project_folder / "hpcdist.yaml"
        path.write_text(text)
        return path


@pytest.fixture
def profiles(tmp_path, monkeypatch, no_files_of_the_user):
    found = Profiles(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(found.project_folder)
    return found
