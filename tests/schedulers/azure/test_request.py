"""The job in YAML that Azure is given: what the SDK reads of it, and what is refused."""

import re
import sys
from pathlib import Path

import pytest
from azure_standin import PROFILE

from hpcdist.base.errors import ProfileError, SchedulerError
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.job.spec import Launch, Resources, ScriptJob
from hpcdist.schedulers.azure.azure import job_yaml
from hpcdist.schedulers.azure.workspace import client_of
from hpcdist.schedulers.base import Target

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


def job(name="train", **resources):
    resources = Resources(**resources)
    return ScriptJob(name=name, script="train.py", resources=resources, launch=Launch())


def target(name="ddp-20261123-010000-abcd", **keys):
    return Target(name=name, folder=Path("/home/ann/runs/RUN"), cwd="/home/ann", **keys)


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
        ({"environment": "torch:3"}, 1, (None, None)),
        ({"environment": "azureml:torch@latest"}, 4, (0.51, 31)),
        ({"environment": REGISTRY}, 4, (1440, 86400)),
        (
            {"environment": None, "image": "pytorch/pytorch:2.8.0-cuda12.6-cudnn9-runtime"},
            1,
            (1, 60),
        ),
    ],
    ids=["version", "label", "registry", "image"],
)
def test_the_sdk_accepts_every_job(load_job, tmp_path, azure, nodes, limit):
    limit_min, limit_s = limit
    profiled = profile(azure=azure, environment={"NCCL_DEBUG": "INFO", "Q": 'it\'s: "{}" #'})
    asked = job(nodes=nodes, gpus=2, time_limit_min=limit_min)
    loaded = read(load_job, tmp_path, asked, profiled, target())

    assert loaded.name == "ddp-20261123-010000-abcd"
    assert (loaded.compute, loaded.resources.shm_size) == ("gpu-cluster", "8g")
    assert loaded.resources.instance_count == nodes
    assert loaded.distribution.process_count_per_instance == 1
    assert (loaded.limits and loaded.limits.timeout) == limit_s
    assert dict(loaded.environment_variables) == profiled.environment
    assert loaded.outputs["run"].mode == "rw_mount"
    assert loaded.outputs["run"].path.endswith(f"/workspaceblobstore/paths/hpcdist/{loaded.name}")


@pytest.mark.parametrize("name", ["yes", "1.0", "a: b # c", "x\ny", "Grüße 😀", "-", '"', "'{%"])
def test_any_name_of_a_job_arrives(load_job, tmp_path, name):
    loaded = read(load_job, tmp_path, job(name=name), profile(), target())
    assert loaded.display_name == re.sub(r"\n", " ", name)
    assert re.fullmatch(r"[A-Za-z0-9][\w-]*", loaded.experiment_name)


def test_a_run_is_called_as_azure_allows(load_job, tmp_path):
    loaded = read(load_job, tmp_path, job(), profile(), target("Train.v2-20261123-010000-abcd"))
    assert loaded.name == "train-v2-20261123-010000-abcd"


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


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"azure": {"compute": None}}, "azure.compute is not set"),
        (
            {"azure": {"workspace": None, "environment": None}},
            "azure.workspace and azure.environment are not set",
        ),
        ({"partition": "gpu"}, "partition is gpu, and Azure has none"),
        ({"mem_gb": 64}, "mem_gb is 64, and Azure has none"),
    ],
)
def test_what_azure_lacks_or_does_not_have_is_named(keys, message):
    with pytest.raises(ProfileError) as caught:
        job_yaml(job(), profile(**keys), target())
    assert caught.value.message == f"the cluster profile: {message}"


def test_without_the_sdk_it_is_said_how_to_install_it(monkeypatch):
    client_of.cache_clear()
    monkeypatch.setitem(sys.modules, "azure.ai.ml", None)
    with pytest.raises(SchedulerError) as caught:
        client_of(AzureOptions(**PROFILE))
    assert (caught.value.exit_code, caught.value.hint) == (2, "pip install 'hpcdist[azure]'")
