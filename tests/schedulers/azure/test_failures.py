"""What Azure may answer other than asked: plain words, the right exit code, and nothing lost."""

import pytest

JOBS = "/workspaces/ml-course/jobs/"
QUOTA = (
    "The requested 96 vCPUs exceed the quota of the family Standard NCADSA100v4: 24 of 24 in use."
)


def runs_of(hpcdist):
    return sorted(path.name for path in (hpcdist.folder / "runs").glob("train*"))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, "Unauthorized", "no"), "error: Azure does not know you: no"),
        ((403, "AuthorizationFailed", "'Ann' has no Microsoft.X/jobs/write"), "the role AzureML"),
        ((403, "QuotaExceeded", QUOTA), "for want of quota: The requested 96 vCPUs"),
        ((400, "UserError", QUOTA), "ask for fewer nodes, or for more quota"),
        ((404, "UserError", "The compute was deleted"), "The compute was deleted"),
        ((409, "Conflict", "The compute is being resized"), "Azure refused the job"),
    ],
    ids=["401", "403", "403 quota", "400 quota", "404", "409"],
)
def test_a_refusal_is_told_and_leaves_nothing(hpcdist, azure, answer, said):
    status, code, message = answer
    azure.fail("PUT", JOBS, status, code=code, message=message, times=9)
    done = hpcdist("submit", "train.py", code=3)
    assert said in done.stderr
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    assert (azure.jobs, runs_of(hpcdist)) == ({}, [])


def test_azure_that_puts_off_is_asked_again_when_it_says(hpcdist, azure):
    azure.fail("PUT", JOBS, 429, code="TooManyRequests", headers={"Retry-After": "1"}, times=2)
    run = hpcdist.submit()
    assert azure.job_ids() == [run.id]
    assert len(azure.asked("PUT", JOBS)) == 3


@pytest.mark.parametrize("status", [503, 0], ids=["503", "broken connection"])
def test_a_job_whose_creation_was_not_answered_is_found_by_its_name(hpcdist, azure, status):
    azure.fail("PUT", JOBS, status, after=True, times=1)
    run = hpcdist.submit()
    assert azure.job_ids() == [run.id]
    assert run.read_submission().job_id == run.id


def test_a_job_that_azure_never_got_is_not_there(hpcdist, azure):
    azure.fail("PUT", JOBS, 500, code="InternalServerError", message="oops", times=9)
    done = hpcdist("submit", "train.py", code=3)
    assert "Azure failed at the job" in done.stderr
    assert "oops" in done.stderr
    assert (azure.jobs, runs_of(hpcdist)) == ({}, [])


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


def test_azure_that_does_not_answer_leaves_a_state_unknown(hpcdist, azure):
    run = hpcdist.submit()
    azure.fail("GET", JOBS, 0, times=99)
    done = hpcdist("status", run.id)
    assert "unknown" in done.stdout
    assert "Azure cannot be reached" in done.stderr
    hpcdist("cancel", run.id, code=3)
    azure.faults.clear()
    assert "pending" in hpcdist("status", run.id).stdout


def test_a_token_that_has_expired_is_replaced(hpcdist, azure):
    azure.token_lasts_s = 1.0
    run = hpcdist.submit()
    before = azure.tokens
    assert before > 1
    azure.issued.clear()  # as of a session that went on for hours
    assert "pending" in hpcdist("status", run.id).stdout


def test_nobody_is_logged_in(hpcdist, azure, monkeypatch):
    monkeypatch.setenv("IDENTITY_HEADER", "another")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = hpcdist("submit", "train.py", code=3)
    assert "error: Azure does not know you" in done.stderr
    assert "hint: log in with: az login" in done.stderr
    assert runs_of(hpcdist) == []


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("compute", "gpu-clster", "azure.compute is gpu-clster, and the workspace has no compute"),
        ("environment", "torhc:3", "azure.environment is torhc:3, and the workspace has no"),
        ("environment", "torch:9", "and the workspace has no such version of it"),
        ("workspace", "ml-curse", "azure.workspace"),
    ],
)
def test_a_name_that_the_workspace_does_not_have_is_wrong_input(hpcdist, azure, key, value, said):
    file = hpcdist.folder / "hpcdist.yaml"
    text = file.read_text()
    (line,) = [one for one in text.splitlines() if one.strip().startswith(f"{key}:")]
    file.write_text(text.replace(line, f"{line.partition(':')[0]}: {value}"))
    done = hpcdist("submit", "train.py", code=2)
    assert said in done.stderr
    assert (azure.jobs, azure.blobs, runs_of(hpcdist)) == ({}, {}, [])


def test_an_upload_that_fails_leaves_nothing(hpcdist, azure):
    azure.fail("PUT", "blob.core.windows.net", 403, code="AuthorizationFailure", times=9)
    done = hpcdist("submit", "train.py", code=3)
    assert "error: Azure" in done.stderr
    assert (azure.jobs, runs_of(hpcdist)) == ({}, [])
