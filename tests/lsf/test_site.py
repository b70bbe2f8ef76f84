"""The simulated LSF itself: what it refuses, misreads, starts, signals, requeues and forgets."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_user import User
from lsf_site.config import STRICT

WAIT = "touch started; while [ ! -e gate ]; do sleep 0.02; done"
# A trap runs at once, and not only when a sleep in the foreground has ended.
NAP = "sleep 0.02 & wait $!"
SAYS_SIGNALS = f"""\
for name in INT TERM USR2; do trap "echo $name >> signals" $name; done
touch started
while [ ! -e gate ]; do {NAP}; done
exit 5
"""


@pytest.fixture
def quick(lsf_like):
    """A site on which kills and limits do not take long."""
    return lsf_like(kill_interval_s=0.3, limit_grace_s=0.3)


@pytest.fixture
def patient(lsf_like):
    """A site on which the next signal of a kill comes when the test wants it."""
    return lsf_like(kill_interval_s=60.0, limit_grace_s=60.0)


@pytest.fixture
def strict(lsf_like):
    return lsf_like(engine=STRICT)


def begin(site, folder, script=WAIT, *options):
    """Submit a job, and return its id when its script runs."""
    (folder / "started").unlink(missing_ok=True)
    job_id = site.submit(script, *options, cwd=folder)
    site.wait_for((folder / "started").exists)
    return job_id


def has_said(folder, *names):
    """Whether these are the signals that the script has had, in this order."""
    path = folder / "signals"
    return lambda: path.exists() and path.read_text().split() == list(names)


def refusal(site, *options, script="true"):
    done = site.submit(script, *options, check=False)
    assert done.returncode == 255
    assert done.stdout == ""
    return done.stderr.strip()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-q", "nowhere"), "nowhere: No such queue"),
        (("-q", "closed"), "closed: Queue has been closed"),
        (("-q", "short", "-W", "2:00"), "RUNLIMIT: Cannot exceed queue's hard limit(s)"),
        (("-q", "short", "-n", "5"), "Too many processors requested"),
        (("-W", "1:00:00"), "1:00:00: Bad RUNLIMIT specification"),
        (("-J", "n" * 301), "Bad job name"),
        (("-J", "n[4-1]"), "n[4-1]: Bad job array index list"),
        (("-w", "done(1"), "Dependency condition syntax error"),
        (("-w", "done(77)"), "77: No matching job found"),
        (("-R", "span[ptile=x]"), "Bad resource requirement syntax"),
        (("-R", "rusage[cats=2]"), "Bad resource requirement syntax"),
        (("-gpu", "num=3"), "GPU requirement cannot be satisfied by any host"),
        (("-gpu", "number=1"), "number=1: Bad GPU resource requirement"),
        (("-m", "hostX"), "hostX: Bad host name, host group name or cluster name"),
        (("-n", "none"), "none: Bad argument for option -n"),
    ],
)
def test_bsub_refuses_with_the_reason(lsf, options, reason):
    assert refusal(lsf, *options) == f"{reason}. Job not submitted."
    assert lsf.jobs() == []


def test_memory_with_a_unit_is_refused_where_the_site_has_its_own(lsf_like):
    site = lsf_like(memory_suffixes=False, memory_unit="KB")
    text = refusal(site, "-R", "rusage[mem=5GB]")
    assert text == "Bad resource requirement syntax. Job not submitted."
    job_id = site.submit("true", "-R", "rusage[mem=4096]")
    assert site.job(job_id).request["memory_mb"] == 4
    site.wait_for_end(job_id)


def test_directives_count_less_than_options_and_a_space_makes_no_difference(lsf, tmp_path):
    script = "#BSUB -J one\n# BSUB -P chemistry\n#BSUB -n 2\n#BSUB -R 'span[hosts=1]'\ntrue"
    job_id = lsf.submit(script, "-J", "two", "-R", "rusage[mem=10]", cwd=tmp_path)
    lsf.wait_for_end(job_id)
    job = lsf.job(job_id)
    assert (job.name, job.project) == ("two", "chemistry")
    assert job.request["slots"] == 2
    assert job.request["text"] == "rusage[mem=10]"


def test_a_script_named_as_an_argument_is_not_read_for_directives(lsf, lsf_like, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#BSUB -J named\n")
    script.chmod(0o755)
    for site, name in ((lsf, "./job.sh"), (lsf_like(parse_script_argument=True), "named")):
        said = site.run("bsub", "./job.sh", cwd=tmp_path).stdout
        (job,) = site.jobs()
        assert job.name == name
        assert said == f"Job <{job.id}> is submitted to default queue <normal>.\n"
        assert site.wait_for_end(job.id) == "DONE"


def test_two_resource_strings_are_merged_or_refused(lsf, strict):
    both = ("-n", "2", "-R", "span[ptile=1]", "-R", "rusage[mem=10]")
    job_id = lsf.submit("true", *both)
    assert lsf.job(job_id).request["per_host"] == 1
    lsf.wait_for_end(job_id)
    assert "Job not submitted" in refusal(strict, *both)


def test_a_strict_engine_misreads_options_by_their_first_letter(strict, tmp_path):
    assert refusal(strict, "-nnodes", "2").startswith("nodes: Bad argument for option -n")
    job_id = strict.submit("#BSUB -gpu num=1\n#BSUB -wa URG\ntrue", cwd=tmp_path)
    job = strict.job(job_id)
    assert (job.options["g"], job.options["w"]) == ("pu", "a")
    assert job.state == "PEND"
    strict.run("bkill", job_id)
    strict.wait_for_end(job_id)


def test_a_job_sees_what_lsf_sets_on_its_first_host(lsf, tmp_path):
    script = 'pwd; env | grep -E "^(LS|CUDA)"; cat $LSB_DJOB_HOSTFILE'
    options = ("-n", "4", "-R", "span[ptile=2]", "-gpu", "num=2", "-J", "x", "-o", "%J.out", "-N")
    job_id = lsf.submit(script, *options, cwd=tmp_path)
    lsf.wait_for_end(job_id)
    lines = (tmp_path / f"{job_id}.out").read_text().splitlines()
    assert lines[0] == str(tmp_path)
    assert lines[-4:] == ["hostA", "hostA", "hostB", "hostB"]
    assert {
        "LSB_MCPU_HOSTS=hostA 2 hostB 2 ",
        "LSB_HOSTS=hostA hostA hostB hostB",
        "LSB_DJOB_NUMPROC=4",
        f"LSB_JOBID={job_id}",
        "LSB_JOBINDEX=0",
        "LSB_JOBNAME=x",
        "LSB_QUEUE=normal",
        "CUDA_VISIBLE_DEVICES=0,1",
        f"LS_SUBCWD={tmp_path}",
        f"LSB_OUTPUTFILE={tmp_path / job_id}.out",
    } <= set(lines)


def test_output_without_a_folder_for_it_is_lost_and_the_job_is_done(lsf, tmp_path):
    job_id = lsf.submit("echo lost", "-o", "missing/out", cwd=tmp_path)
    assert lsf.wait_for_end(job_id) == "DONE"
    assert list(tmp_path.iterdir()) == []


def test_two_jobs_on_one_host_get_different_gpus(lsf, tmp_path):
    options = ("-gpu", "num=1", "-m", "hostB")
    ids = [lsf.submit(WAIT, *options, cwd=tmp_path) for _ in range(3)]
    lsf.wait_for_state(ids[1], "RUN")
    assert [lsf.job(one).gpus for one in ids] == [[[0]], [[1]], []]
    assert lsf.job(ids[2]).pending_reason == "Not enough GPUs on the hosts: 1 hosts"
    (tmp_path / "gate").touch()
    assert [lsf.wait_for_end(one) for one in ids] == ["DONE"] * 3


def test_an_array_keeps_its_limit_and_a_dependency_waits_for_all_of_it(lsf, tmp_path):
    script = "echo $LSB_JOBINDEX > $LSB_JOBINDEX; while [ ! -e gate ]; do sleep 0.02; done"
    array = lsf.submit(script, "-J", "a[1-4,7]%2", "-o", "%J_%I.out", cwd=tmp_path)
    after = lsf.submit("ls ?.out ????_?.out", "-w", f"done({array})", "-o", "after", cwd=tmp_path)
    lsf.wait_for((tmp_path / "2").exists)
    states = [one.state for one in lsf.elements(array)]
    assert states == ["RUN", "RUN", "PEND", "PEND", "PEND"]
    assert lsf.job(after).pending_reason == "Job dependency condition not satisfied"
    (tmp_path / "gate").touch()
    assert lsf.wait_for_end(after) == "EXIT"  # there is no file ?.out
    assert "7.out" in (tmp_path / "after").read_text()


def test_a_kill_is_sigint_then_sigterm_then_sigkill(patient, tmp_path):
    site = patient
    job_id = begin(site, tmp_path, SAYS_SIGNALS)
    assert site.run("bkill", job_id).stdout == f"Job <{job_id}> is being terminated\n"
    site.wait_for(has_said(tmp_path, "INT"))
    site.hurry(job_id)
    site.wait_for(has_said(tmp_path, "INT", "TERM"))
    site.hurry(job_id)
    assert site.wait_for_end(job_id) == "EXIT"
    assert has_said(tmp_path, "INT", "TERM")()
    job = site.job(job_id)
    assert (job.exit_code, job.reason) == (137, "TERM_OWNER")
    again = site.run("bkill", job_id, check=False)
    assert (again.returncode, again.stderr) == (255, f"Job <{job_id}>: Job has already finished\n")


def test_the_run_limit_is_sigusr2_then_sigkill(lsf_like, tmp_path):
    site = lsf_like(limit_grace_s=60.0, minute_s=0.1)
    job_id = begin(site, tmp_path, SAYS_SIGNALS)
    site.reach_limit(job_id)
    site.wait_for(has_said(tmp_path, "USR2"))
    site.hurry(job_id)
    assert site.wait_for_end(job_id) == "EXIT"
    assert has_said(tmp_path, "USR2")()
    assert site.job(job_id).reason == "TERM_RUNLIMIT"
    plain = site.submit("sleep 30", "-W", "1", cwd=tmp_path)
    site.wait_for_end(plain)
    assert site.job(plain).exit_code == 140


def test_a_requeue_value_requeues_also_as_the_answer_to_a_kill(patient, tmp_path):
    script = (
        "trap 'exit 75' INT; echo ${LSB_RESTART:-first} >> lives; [ $(wc -l < lives) -lt 3 ] ||"
        f" exit 0; touch started; [ $(wc -l < lives) -gt 1 ] || while :; do {NAP}; done; exit 75"
    )
    job_id = begin(patient, tmp_path, script, "-q", "requeue")
    patient.run("bkill", job_id)
    assert patient.wait_for_end(job_id) == "DONE"
    assert (tmp_path / "lives").read_text().split() == ["first", "Y", "Y"]


def test_brequeue_ends_a_running_job_and_starts_it_again_with_its_id(quick, tmp_path):
    job_id = begin(quick, tmp_path)
    with quick.refusing_requeues():
        assert quick.run("brequeue", job_id, check=False).returncode == 255
    quick.run("brequeue", job_id)
    quick.wait_for(lambda: quick.job(job_id).attempts == 2)
    (tmp_path / "gate").touch()
    assert quick.wait_for_end(job_id) == "DONE"
    assert quick.run("brequeue", "-e", job_id, check=False).returncode == 255
    failed = quick.submit("exit 3", cwd=tmp_path)
    quick.wait_for_end(failed)
    quick.run("brequeue", "-e", failed)
    quick.wait_for(lambda: quick.job(failed).attempts == 2)
    quick.wait_for_end(failed)


def test_blaunch_only_works_inside_a_job_and_on_its_hosts(lsf, tmp_path):
    assert lsf.run("blaunch", "hostA", "true", check=False).returncode == 255
    script = (
        "export MINE=travels\n"
        'blaunch -z "hostA hostB" \'echo $LSB_SITE_HOST $MINE\' "\\$((1+1))"; echo code $?\n'
        "blaunch hostB exit 7; echo code $?\nblaunch hostC true; echo code $?"
    )
    options = ("-n", "2", "-R", "span[ptile=1]", "-o", "out", "-N")
    lsf.wait_for_end(lsf.submit(script, *options, cwd=tmp_path))
    lines = (tmp_path / "out").read_text().splitlines()
    assert sorted(lines[:2]) == ["hostA travels 2", "hostB travels 2"]
    assert lines[2:] == [
        "code 0",
        "code 7",
        "blaunch: hostC: Host is not in the job's list of allocated hosts",
        "code 255",
    ]


def test_on_a_strict_engine_a_task_gets_a_fresh_environment_and_folder(strict, tmp_path):
    script = "export MINE=travels\nblaunch hostA 'pwd; echo ${MINE:-nothing} ${LSB_JOBID:-nothing}'"
    options = ("-o", "out", "-N")
    strict.wait_for_end(strict.submit(script, *options, cwd=tmp_path))
    assert (tmp_path / "out").read_text().split() == [str(Path.home()), "nothing", "nothing"]


def test_remote_tasks_get_no_signal_and_end_with_their_job(quick, tmp_path):
    task = 'for s in INT TERM; do trap \\"echo $s >> $PWD/told\\" $s; done; touch $PWD/started;'
    script = f'blaunch hostB "{task} while :; do sleep 0.02; done"'
    options = ("-n", "2", "-R", "span[ptile=1]")
    job_id = begin(quick, tmp_path, script, *options)
    quick.run("bkill", job_id)
    assert quick.wait_for_end(job_id) == "EXIT"
    assert not (tmp_path / "told").exists()


def test_blaunch_tells_when_another_host_of_the_job_is_lost(lsf, tmp_path):
    script = f"blaunch hostB '{WAIT.replace('started', '$PWD/started')}'; echo code $?"
    options = ("-n", "2", "-R", "span[ptile=1]", "-o", "out", "-N")
    job_id = begin(lsf, tmp_path, script.replace("'", '"'), *options)
    lsf.lose_host("hostB")
    assert lsf.wait_for_end(job_id) == "DONE"
    said = (tmp_path / "out").read_text()
    # The shell may add a word of its own on the process that was killed.
    assert said.startswith("Lost connection to host hostB\ncode 255\n")


def test_brequeue_at_the_run_limit_does_not_wait_for_the_grace(lsf_like, tmp_path):
    site = lsf_like(kill_interval_s=0.15, limit_grace_s=60)
    script = f"trap 'brequeue $LSB_JOBID' USR2; [ -z \"$LSB_RESTART\" ] || exit 0; {WAIT}"
    job_id = begin(site, tmp_path, script)
    site.reach_limit(job_id)
    assert site.wait_for_end(job_id) == "DONE"
    assert site.job(job_id).attempts == 2


def test_what_ssh_starts_is_left_alone_when_the_job_ends(lsf_like, tmp_path):
    site = lsf_like(ssh=True)
    folder = f"cd {tmp_path};"
    script = f"ssh -o BatchMode=yes hostB '{folder} {WAIT}; rm started' & wait"
    job_id = begin(site, tmp_path, script)
    site.kill(job_id)
    assert site.wait_for_end(job_id) == "EXIT"
    assert (tmp_path / "started").exists()
    (tmp_path / "gate").touch()
    site.wait_for(lambda: not (tmp_path / "started").exists())


def test_a_job_whose_first_host_is_lost_is_unknown_or_runs_elsewhere(lsf_like, tmp_path):
    lsf = lsf_like(loss_known_s=0.3, rerun_after_s=0.3)
    job_id = begin(lsf, tmp_path, WAIT, "-m", "hostA")
    again = begin(lsf, tmp_path, WAIT, "-r", "-m", "hostA hostB")
    lsf.lose_host("hostA")
    assert lsf.job_state(job_id) == "RUN"
    lsf.wait_for_state(job_id, "UNKWN")
    assert "Job has not started yet" in lsf.run("brequeue", job_id, check=False).stderr
    lsf.wait_for(lambda: lsf.job(again).hosts == ["hostB"])
    (tmp_path / "gate").touch()
    assert lsf.wait_for_end(again) == "DONE"
    lsf.return_host("hostA")
    assert lsf.wait_for_end(job_id) == "EXIT"


def test_brequeue_ends_a_job_whose_first_host_is_lost_for_good(lsf, tmp_path):
    job_id = begin(lsf, tmp_path, WAIT, "-r")
    lsf.lose_host("hostA")
    lsf.run("brequeue", job_id)
    assert lsf.job(job_id).state == "EXIT"


def test_a_host_that_was_lost_a_moment_ago_gets_jobs_unless_they_exclude_it(lsf, tmp_path):
    lsf.lose_host("hostB")
    assert "hostB              ok" in lsf.run("bhosts", "-w").stdout
    script = "blaunch hostB true; echo code $?"
    job_id = lsf.submit(script, "-n", "2", "-R", "span[ptile=1]", "-o", "out", "-N", cwd=tmp_path)
    lsf.wait_for_end(job_id)
    said = (tmp_path / "out").read_text()
    assert said == "blaunch: connect to host hostB: No route to host\ncode 255\n"
    elsewhere = "select[hname!=hostB && hname!=hostC] span[ptile=1]"
    job_id = lsf.submit("true", "-n", "2", "-R", elsewhere)
    lsf.wait_for_end(job_id)
    assert lsf.job(job_id).hosts == ["hostA", "hostD"]


def test_while_the_daemon_does_not_answer_commands_hang(lsf):
    with lsf.silent():
        command = lsf.start_command("bjobs", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert command.stderr.readline() == "LSF is down. Please wait ...\n"
        assert command.poll() is None
    out, err = command.communicate(timeout=150)
    assert (out, err, command.returncode) == ("", "No unfinished job found\n", 255)


def test_an_answer_can_be_lost_though_the_job_was_accepted(lsf):
    lsf.lose_answers("bsub")
    pipe = subprocess.PIPE
    command = lsf.start_command("bsub", "true", cwd="/tmp", stdout=pipe, stderr=pipe)
    (job,) = lsf.wait_for(lsf.jobs)
    lsf.wait_for_end(job.id)
    assert command.stderr.readline() == "LSF is down. Please wait ...\n"
    assert command.poll() is None
    command.kill()
    assert command.communicate(timeout=150)[0] == ""


def test_commands_fail_as_they_are_told_to(lsf):
    with lsf.refusing("bsub", "User has too many jobs. Job not submitted."):
        assert refusal(lsf) == "User has too many jobs. Job not submitted."
    with lsf.garbling("bjobs", "<html>"):
        assert lsf.run("bjobs").stdout == "<html>"
    with lsf.slow("bjobs", 60), pytest.raises(subprocess.TimeoutExpired):
        lsf.run("bjobs", timeout=0.2)
    with lsf.without("blaunch"):
        assert lsf.run("sh", "-c", "command -v blaunch", check=False).returncode == 127
    assert lsf.calls()["bjobs"] >= 2


def test_administrators_suspend_preempt_and_kill(quick, tmp_path):
    job_id = begin(quick, tmp_path)
    quick.suspend(job_id)
    assert quick.run("bjobs", "-noheader", "-o", "stat", job_id).stdout.strip() == "SSUSP"
    quick.resume(job_id)
    quick.preempt(job_id)
    quick.wait_for(lambda: quick.job(job_id).attempts == 2)
    quick.show_as(job_id, "WAIT")
    assert quick.run("bjobs", "-noheader", "-o", "stat", job_id).stdout.strip() == "WAIT"
    quick.kill(job_id)
    assert quick.wait_for_end(job_id) == "EXIT"
    assert quick.job(job_id).reason == "TERM_ADMIN"
    quick.forget(job_id)
    assert quick.run("bkill", job_id, check=False).returncode == 255


def test_bjobs_shows_what_each_engine_can_show(lsf, lsf_like, tmp_path):
    ask = ("bjobs", "-a", "-o", "jobid stat exit_code delimiter='|'")
    job_id = lsf.submit("exit 3", cwd=tmp_path)
    lsf.wait_for_end(job_id)
    assert lsf.run(*ask, "-noheader").stdout == f"{job_id}|EXIT|3\n"
    done = lsf.run(*ask, "-json", job_id, "9", check=False)
    known, unknown = json.loads(done.stdout)["RECORDS"]
    assert known == {"JOBID": job_id, "STAT": "EXIT", "EXIT_CODE": "3"}
    assert unknown == {"JOBID": "9", "ERROR": "Job <9> is not found"}
    strict = lsf_like(engine=STRICT)
    for options in (("-json",), ("-noheader",), ("-X",), ("-o", "pend_reason")):
        assert strict.run("bjobs", *options, check=False).returncode == 255
    done = strict.run("bjobs", check=False)
    assert (done.returncode, done.stderr) == (254, "No unfinished job found\n")


def test_the_table_has_a_line_for_each_host_and_cuts_long_names(lsf, tmp_path):
    options = ("-n", "4", "-R", "span[ptile=2]", "-J", "a-rather-long-name")
    job_id = begin(lsf, tmp_path, WAIT, *options)
    lines = lsf.run("bjobs").stdout.splitlines()
    assert lines[0].split() == [
        *("JOBID", "USER", "STAT", "QUEUE", "FROM_HOST", "EXEC_HOST", "JOB_NAME", "SUBMIT_TIME")
    ]
    assert lines[1].split()[5:7] == ["2*hostA", "*long-name"]
    assert lines[2] == " " * 45 + "2*hostB"
    (tmp_path / "gate").touch()
    lsf.wait_for_end(job_id)


def test_an_ended_job_is_forgotten_after_the_clean_period(lsf_like):
    site = lsf_like(clean_period_s=0.2)
    job_id = site.submit("true")
    site.wait_for(lambda: site.job(job_id) is None)
    assert "is not found" in site.run("bjobs", job_id, check=False).stderr


def test_a_user_of_the_site_calls_hpcdist(lsf_here, tmp_path):
    user = User(lsf_here, tmp_path)
    script = user.write("says.py", "import os; print('here', os.environ['LSF_ENVDIR'])")
    done = user("submit", script, "--local", "--gpus", "1", "--set", "launch.device=cpu")
    assert f"here {lsf_here.folder}" in done.stdout


def test_hpcdist_detects_the_site_where_there_is_no_slurm(lsf, tmp_path):
    assert lsf.run("sh", "-c", "command -v sinfo", check=False).returncode != 0
    words = (sys.executable, "-m", "hpcdist", "cluster", "detect", "--scheduler=lsf")
    found = lsf.run(*words, cwd=tmp_path).stdout
    assert "gpuv100" in found
    assert "closed" not in found


def test_what_a_test_leaves_is_told_and_gone(lsf, tmp_path):
    job_id = begin(lsf, tmp_path, f"setsid sh -c '{WAIT}' & wait")
    assert [job.id for job in lsf.restore(should_end_s=0)] == [job_id]
    assert lsf.jobs() == []
