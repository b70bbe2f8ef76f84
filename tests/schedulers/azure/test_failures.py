"""What Azure may answer other than asked: plain words, the right exit code, and nothing lost."""

import pytest
from azure_standin import PROFILE
from script_jobs import job, target

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.schedulers.azure import workspace as site
from hpcdist.schedulers.azure.azure import create as create_job
from hpcdist.schedulers.azure.azure import job_yaml

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # of the SDK, about what it uses itself
JOBS = "/workspaces/ml-course/jobs/"
QUOTA = "The requested 96 vCPUs exceed the quota: 24 of 24 in use."


def runs_of(hpcdist):
    return sorted(path.name for path in (hpcdist.folder / "runs").glob("train*"))


@pytest.fixture
def create(azure, tmp_path, monkeypatch):
    """Create the job run, by the real SDK in this process."""
    monkeypatch.setattr(site, "_READ_TIMEOUT_S", 0.5)
    site.client_of.cache_clear()
    (tmp_path / "upload").mkdir()
    (tmp_path / "upload" / "code.tar.gz").write_bytes(b"archive")
    options = AzureOptions(**PROFILE)
    cluster = ClusterProfile(scheduler="azure", azure=options)
    (tmp_path / "job.yml").write_text(job_yaml(job(), cluster, target(tmp_path)))
    yield lambda: create_job(options, tmp_path / "job.yml", "run")
    site.client_of.cache_clear()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((403, "AuthorizationFailed", "'Ann' has no Microsoft.X/jobs/write"), "the roles AzureML"),
        ((400, "UserError", QUOTA), "Azure refused the job run (400): The requested 96 vCPUs"),
    ],
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
    ("status", "delay_s"), [(503, 0), (201, 1)], ids=["503", "no answer in time"]
)
def test_a_job_whose_creation_was_not_answered_is_found_by_its_name(create, azure, status, delay_s):
    azure.fail("PUT", JOBS, status, after=True, times=1, delay_s=delay_s)
    (note,) = create()
    assert "has the job run" in note
    assert azure.job_ids() == ["run"]
    assert len(azure.asked("PUT", JOBS)) == 2


def test_a_run_of_which_nobody_knows_is_kept_found_later_and_ended_though_azure_is_silent(
    hpcdist, azure
):
    azure.fail("PUT", JOBS, 503, after=True, times=9)
    azure.fail("GET", JOBS, 503, times=99)
    done = hpcdist("submit", "train.py", code=3)
    assert "it is not known whether train-" in done.stderr
    (name,) = runs_of(hpcdist)
    assert azure.job_ids() == [name]
    azure.faults.clear()
    assert "pending" in hpcdist("status", name).stdout
    azure.fail("GET", JOBS, 0, times=99)
    done = hpcdist("status", name)
    assert "unknown" in done.stdout
    assert "Azure failed at the job" in done.stderr
    hpcdist("cancel", name, code=3)
    assert azure.jobs[name]["properties"]["status"] == "Canceled"
    azure.faults.clear()
    assert "cancelled" in hpcdist("status", name).stdout


def test_nobody_is_logged_in_or_the_workspace_is_not_there(hpcdist, azure, monkeypatch):
    file = hpcdist.folder / "hpcdist.yaml"
    text = file.read_text()
    file.write_text(text.replace("workspace: ml-course", "workspace: ml-curse"))
    done = hpcdist("submit", "train.py", code=3)
    assert "check the section azure of the profile" in done.stderr
    file.write_text(text)
    monkeypatch.setenv("IDENTITY_HEADER", "another")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = hpcdist("submit", "train.py", code=3)
    assert "error: Azure refused the login" in done.stderr
    assert "hint: log in with: az login" in done.stderr
    assert (azure.jobs, azure.blobs, runs_of(hpcdist)) == ({}, {}, [])
