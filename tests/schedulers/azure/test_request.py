"""The job in YAML that Azure is given: what the SDK reads of it, and what is refused."""

import re
import sys

import pytest
from azure_standin import PROFILE
from msgspec.structs import replace
from script_jobs import job, target

from hpcdist.base.errors import ProfileError, SchedulerError
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.schedulers.azure.azure import job_yaml
from hpcdist.schedulers.azure.workspace import client_of

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # of the SDK, about what it uses itself
REGISTRY = "azureml://registries/azureml/environments/acpt-pytorch-2.8/labels/latest"


@pytest.fixture(scope="module")
def load_job():
    """Return the SDK's own reader of jobs."""
    from azure.ai.ml import load_job

    return load_job


def profile(*, azure=None, **keys):
    options = AzureOptions(**PROFILE | (azure or {}))
    return ClusterProfile(scheduler="azure", azure=options, **keys)


def read(load_job, tmp_path, *words, **options):
    """Return what the SDK makes of a job, which it must accept."""
    path = tmp_path / "job.yml"
    path.write_text(job_yaml(*words, **options))
    (tmp_path / "upload").mkdir(exist_ok=True)
    loaded = load_job(path)
    result = loaded._validate()
    assert result.passed, result
    return loaded


@pytest.mark.parametrize(
    ("azure", "nodes", "limit"),
    [
        ({"environment": REGISTRY}, 4, (0.51, 31)),
        ({"environment": None, "image": "pytorch/pytorch:2.8.0"}, 1, (None, None)),
    ],
)
def test_the_sdk_accepts_every_job(load_job, tmp_path, azure, nodes, limit):
    limit_min, limit_s = limit
    profiled = profile(azure=azure, environment={"NCCL_DEBUG": "INFO", "Q": 'it\'s: "{}" #'})
    asked = job(nodes=nodes, gpus=2, time_limit_min=limit_min)
    placed = replace(target(environment={}), name="Train.v2-20261123-abcd")
    loaded = read(load_job, tmp_path, asked, profiled, placed)

    assert loaded.name == "train-v2-20261123-abcd"
    assert (loaded.compute, loaded.resources.shm_size) == ("gpu-cluster", "8g")
    assert loaded.resources.instance_count == nodes
    assert loaded.distribution.process_count_per_instance == 1
    assert (loaded.limits and loaded.limits.timeout) == limit_s
    assert dict(loaded.environment_variables) == profiled.environment
    assert loaded.outputs["run"].mode == "rw_mount"
    assert loaded.outputs["run"].path.endswith(f"/workspaceblobstore/paths/hpcdist/{loaded.name}")


@pytest.mark.parametrize("name", ["1.0", "a: b # c", "x\ny", "Grüße 😀", "-", "'{%"])
def test_any_name_of_a_job_arrives(load_job, tmp_path, name):
    loaded = read(load_job, tmp_path, replace(job(), name=name), profile(), target())
    assert loaded.display_name == re.sub(r"\n", " ", name)
    assert re.fullmatch(r"[A-Za-z0-9][\w-]*", loaded.experiment_name)


def test_the_command_has_the_setup_and_the_paths_of_the_snapshot(load_job, tmp_path):
    snapshot = "/home/ann/runs/x/code"
    placed = target(
        own_folders=["/home/ann/runs/x", snapshot],
        environment={"PYTHONPATH": f"{snapshot}/my src:/home/ann/other:{snapshot}"},
    )
    profiled = profile(setup=["pip install einops", "if true; then\n  echo 'a: b'\nfi"])
    loaded = read(load_job, tmp_path, job(), profiled, placed)
    path = '"$here"/lib:"$here"/\'snapshot/my src\':"$here"/snapshot'
    assert loaded.command.splitlines() == [
        "here=$PWD",
        "pip install einops",
        "if true; then",
        "  echo 'a: b'",
        "fi",
        'cd "$here" || exit 1',
        "tar -xzf code.tar.gz || exit 1",
        f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}",
        "exec python -u -m hpcdist.schedulers.azure.node ${{outputs.run}}",
    ]


def test_what_azure_lacks_or_does_not_have_is_named():
    with pytest.raises(ProfileError, match=r"azure\.workspace and azure\.environment are not set"):
        job_yaml(job(), profile(azure={"workspace": None, "environment": None}), target())
    with pytest.raises(ProfileError, match="partition is gpu, and Azure has none"):
        job_yaml(job(), profile(partition="gpu"), target())


def test_without_the_sdk_it_is_said_how_to_install_it(monkeypatch):
    client_of.cache_clear()
    monkeypatch.setitem(sys.modules, "azure.ai.ml", None)
    with pytest.raises(SchedulerError) as caught:
        client_of(AzureOptions(**PROFILE))
    assert (caught.value.exit_code, caught.value.hint) == (2, "pip install 'hpcdist[azure]'")
