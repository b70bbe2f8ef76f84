"""The image of a job before it is submitted: what is found out, and what each runtime is called
with."""

import pytest
from runtime_stand_ins import image_file, install

from hpcdist.base.errors import JobError
from hpcdist.cluster.load import NO_PROFILE
from hpcdist.job.load import load_job
from hpcdist.job.spec import Container
from hpcdist.machine.containers import InContainer, Mount, start_command
from hpcdist.schedulers import load_scheduler
from hpcdist.submission.workspace import settle_container


@pytest.fixture
def settle(tmp_path, monkeypatch):
    """The container that a job settles on; keys are the job's."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    install(tmp_path / "bin", "podman")  # a machine with one runtime

    def get(*, scheduler="slurm", profile=None, **keys):
        keys = keys if profile or "runtime" in keys else {"runtime": "podman", **keys}
        script = tmp_path / "script.py"
        script.touch()
        sets = [f"container.{key}={value}" for key, value in keys.items()]
        cluster = NO_PROFILE
        if profile is not None:
            of_cluster = type(cluster.profile)(container=Container(**profile))
            cluster = type(cluster)(name="gpu", profile=of_cluster, origins={})
        loaded = load_job(str(script), overrides=sets)
        return settle_container(loaded, cluster, load_scheduler(scheduler)).job.container

    return get


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"image": "/no/such.sif", "runtime": "null"}, "container.runtime is null, must be"),
        ({"image": "/no/such.sif", "runtime": "apptainer"}, "cannot be read: No such file"),
        ({"image": "docker://a/b", "runtime": "charliecloud"}, "names a registry"),
        ({"image": "docker://a/b", "mounts": "[data]"}, "'data' must be an absolute path"),
        ({"image": "docker://a/b", "options": "['--env=HF_TOKEN=hf_" + "a" * 34 + "']"}, "secret"),
        ({"image": "docker://a/b", "scheduler": "azure"}, "starts no containers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_image_mount_or_option_is_an_error_before_the_submission(settle, keys, words):
    with pytest.raises(JobError, match=r"container\.") as error:
        settle(**keys)
    assert words in error.value.message


def test_a_job_takes_the_profiles_image_unless_it_names_its_own_or_none(settle):
    profile = {"image": "docker://a/b:1", "runtime": "pyxis", "mounts": ["/scratch"]}
    container = settle(profile=profile, mounts="[/usr]")
    assert (container.image, container.runtime) == ("docker://a/b:1", "pyxis")
    assert container.mounts == ["/scratch", "/usr"]
    assert settle(profile=profile, image="none") == Container()
    assert settle(profile=profile, image="docker://c/d").image == "docker://c/d"


def test_each_runtime_is_given_the_folders_devices_and_directory_in_its_own_words(tmp_path):
    image = image_file(tmp_path / "torch", ".sif")
    node = {"/dev/nvidiactl", "/dev/infiniband", f"{image}/ch/environment"}

    def words(runtime, image=str(image), **environment):
        container = InContainer(
            runtime=runtime,
            image=image,
            mounts=[Mount("/runs", "/runs"), Mount("/data", "/d", is_read_only=True)],
            python="python3",
            python_path="/carried",
            options=["--more"],
        )
        return start_command(
            container,
            ["python3", "x"],
            cwd="/here",
            environment=environment,
            has=node.__contains__,
        )

    mounts = "--bind=/runs:/runs --bind=/data:/d"
    apptainer = f"apptainer exec --nv {mounts}:ro --pwd=/here --more {image} python3 x"
    assert words("apptainer") == apptainer.split()
    charliecloud = f"ch-run --set-env {mounts} --cd=/here --more {image} -- python3 x"
    assert words("charliecloud") == charliecloud.split()
    step = {"SLURMD_NODENAME": "n3", "SLURM_CPUS_PER_TASK": "8"}
    pyxis = (
        "srun --overlap --mem=0 --nodes=1 --ntasks=1 --nodelist=n3 --ntasks-per-node=1 "
        "--cpu-bind=none --unbuffered --input=none --cpus-per-task=8 "
        "--container-image=nvcr.io#nvidia/pytorch:25.01-py3 "
        "--container-mounts=/runs:/runs,/data:/d:ro --container-workdir=/here "
        "--no-container-entrypoint --no-container-remap-root --more python3 x"
    )
    assert words("pyxis", "docker://nvcr.io/nvidia/pytorch:25.01-py3", **step) == pyxis.split()
    podman = words("podman", "docker://a/b", TOKEN="secret")
    assert {"--volume=/runs:/runs", "--volume=/data:/d:ro"} <= {*podman}
    assert {"--device=nvidia.com/gpu=all", "--device=/dev/infiniband"} <= {*podman}
    assert not any("secret" in word for word in podman)
