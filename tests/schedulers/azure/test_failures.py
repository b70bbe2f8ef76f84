"""What Azure may answer other than asked: plain words, the right exit code, and nothing lost."""

import pytest
from azure_standin import PROFILE

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.job.spec import Launch, Resources, ScriptJob
from hpcdist.schedulers.azure import workspace as site
from hpcdist.schedulers.azure.azure import create as create_job
from hpcdist.schedulers.azure.azure import job_yaml
from hpcdist.schedulers.base import Target

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # of the SDK, about what it uses itself
JOBS = "/workspaces/ml-course/jobs/"
QUOTA = (
    "The requested 96 vCPUs exceed the quota of the family Standard NCADSA100v4: 24 of 24 in use."
)


def runs_of(hpcdist):
    return sorted(path.name for path in (hpcdist.folder / "runs").glob("train*"))


@pytest.fixture
def create(azure, tmp_path, monkeypatch):
    """Create the job train-1, by the real SDK in this process."""
    monkeypatch.setattr(site, "_READ_TIMEOUT_S", 0.5)
    site.client_of.cache_clear()
    (tmp_path / "upload").mkdir()
    (tmp_path / "upload" / "code.tar.gz").write_bytes(b"archive")
    options = AzureOptions(**PROFILE)
    cluster = ClusterProfile(scheduler="azure", azure=options)
    job = ScriptJob(name="train", script="train.py", resources=Resources(), launch=Launch())
    target = Target(name="train-1", folder=tmp_path, cwd="/home/ann")
    (tmp_path / "job.yml").write_text(job_yaml(job, cluster, target))
    yield lambda: create_job(options, tmp_path / "job.yml", "train-1")
    site.client_of.cache_clear()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((403, "AuthorizationFailed", "'Ann' has no Microsoft.X/jobs/write"), "the roles AzureML"),
        ((400, "UserError", QUOTA), "Azure refused the job train-1 (400): The requested 96 vCPUs"),
        ((500, "InternalServerError", "oops"), "Azure failed at the job train-1 (500): oops"),
    ],
    ids=["403", "400 quota", "500"],
)
def test_a_refusal_is_told(create, azure, answer, said):
    status, code, message = answer
    azure.fail("PUT", JOBS, status, code=code, message=message, times=9)
    with pytest.raises(SchedulerError) as caught:
        create()
    assert said in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.exit_code == 3
    assert azure.jobs == {}


@pytest.mark.parametrize(
    ("place", "status", "said"),
    [
        (JOBS, 409, "error: Azure refused the job"),
        ("blob.core.windows.net", 403, "Storage Blob Data Contributor"),
    ],
    ids=["job", "upload"],
)
def test_a_refusal_leaves_nothing(hpcdist, azure, place, status, said):
    azure.fail("PUT", place, status, code="Refused", message="it cannot be", times=9)
    done = hpcdist("submit", "train.py", code=3)
    assert said in done.stderr
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    assert (azure.jobs, runs_of(hpcdist)) == ({}, [])


def test_azure_that_puts_off_is_asked_again_when_it_says(create, azure):
    azure.fail("PUT", JOBS, 429, code="TooManyRequests", headers={"Retry-After": "1"}, times=2)
    assert create() == []
    assert azure.job_ids() == ["train-1"]
    assert len(azure.asked("PUT", JOBS)) == 3


@pytest.mark.parametrize(
    ("status", "delay_s"),
    [(503, 0), (0, 0), (201, 1)],
    ids=["503", "broken connection", "no answer in time"],
)
def test_a_job_whose_creation_was_not_answered_is_found_by_its_name(create, azure, status, delay_s):
    azure.fail("PUT", JOBS, status, after=True, times=1, delay_s=delay_s)
    (note,) = create()
    assert "has the job train-1" in note
    assert azure.job_ids() == ["train-1"]
    assert len(azure.asked("PUT", JOBS)) == 2


def test_what_the_sdk_itself_does_not_take_is_no_silence(create, azure, tmp_path):
    (tmp_path / "upload" / "code.tar.gz").unlink()
    with pytest.raises(SchedulerError, match="Azure's SDK does not take the job train-1") as caught:
        create()
    assert not isinstance(caught.value, site.SilentAzureError)
    assert azure.jobs == {}


def test_a_run_of_which_nobody_knows_is_kept_and_found_later(hpcdist, azure):
    azure.fail("PUT", JOBS, 503, after=True, times=9)
    azure.fail("GET", JOBS, 503, times=99)
    done = hpcdist("submit", "train.py", code=3)
    assert "it is not known whether train-" in done.stderr
    (name,) = runs_of(hpcdist)
    assert azure.job_ids() == [name]
    azure.faults.clear()
    assert "pending" in hpcdist("status", name).stdout
    hpcdist("cancel", name)
    assert azure.jobs[name]["properties"]["status"] == "Canceled"


def test_a_job_is_ended_though_azure_does_not_say_how_it_is(hpcdist, azure):
    run = hpcdist.submit()
    azure.fail("GET", JOBS, 0, times=99)
    done = hpcdist("status", run.id)
    assert "unknown" in done.stdout
    assert "Azure failed at the job" in done.stderr
    hpcdist("cancel", run.id, code=3)
    assert azure.jobs[run.id]["properties"]["status"] == "Canceled"
    azure.faults.clear()
    assert "cancelled" in hpcdist("status", run.id).stdout


def test_nobody_is_logged_in(hpcdist, azure, monkeypatch):
    monkeypatch.setenv("IDENTITY_HEADER", "another")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = hpcdist("submit", "train.py", code=3)
    assert "error: Azure refused the login" in done.stderr
    assert "hint: log in with: az login" in done.stderr
    assert runs_of(hpcdist) == []


def test_a_workspace_that_is_not_there_is_told_and_nothing_is_sent(hpcdist, azure):
    file = hpcdist.folder / "hpcdist.yaml"
    file.write_text(file.read_text().replace("workspace: ml-course", "workspace: ml-curse"))
    done = hpcdist("submit", "train.py", code=3)
    assert "check the section azure of the profile" in done.stderr
    assert (azure.jobs, azure.blobs, runs_of(hpcdist)) == ({}, {}, [])
