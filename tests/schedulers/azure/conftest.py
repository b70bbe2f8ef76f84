"""The command, as its users call it, with a stand-in for Azure behind the real SDK."""

import io
import os
import subprocess
import tarfile

import pytest
import yaml
from azure_standin import PROFILE, azure_standin
from harness import command_zygote, run_command

from hpcdist.runs.run import Run

SDK = ("azure.ai.ml", "azure.identity", "azure.storage.blob")
OUTSIDE = ("HTTP_PROXY", "http_proxy", "https_proxy", "no_proxy", "AZURE_CLIENT_ID")


@pytest.fixture(scope="session")
def command_process():
    """The process that calls are forked from, which has imported the SDK."""
    with command_zygote(*SDK) as process:
        yield process


@pytest.fixture
def azure(tmp_path, monkeypatch):
    """The stand-in, to which the SDK is led; in a project with a profile and a script."""
    with azure_standin(tmp_path) as (standin, variables):
        for name in OUTSIDE:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield standin
        assert standin.unknown_hosts == []


@pytest.fixture
def hpcdist(tmp_path, monkeypatch, azure, command_process):
    """The command, in a git work tree of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    profiles = {"azure-gpu": {"scheduler": "azure", "azure": PROFILE}}
    with (folder / "hpcdist.yaml").open("w") as file:
        yaml.safe_dump({"clusters": profiles}, file)
    (folder / "train.py").write_text("print('trained')\n")
    (folder / ".gitignore").write_text("runs\ndata\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)

    def call(*words, code=0):
        done = run_command(command_process, words, cwd=folder, environment=os.environ, limit_s=100)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def submit(*words):
        done = call("submit", "train.py", *words)
        return Run(folder / "runs" / done.stdout.split()[0])

    call.folder, call.submit = folder, submit
    return call


@pytest.fixture
def unpack(azure):
    """Unpack the newest archive that was uploaded, which alone is, as the command of each node
    does."""

    def make(folder):
        blobs = {name: one for name, (one, _) in azure.blobs.items() if name.startswith("code-")}
        assert {name.rpartition("/")[2] for name in blobs} == {"code.tar.gz"}
        *_, content = blobs.values()
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(folder, filter="data")

    return make
