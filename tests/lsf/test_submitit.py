"""submitit alone on a simulated site: a user's program that knows nothing of hpcdist."""

import json
import shutil
import sys

import pytest

LIMIT_S = 100

WORK = """
import os, pathlib, sys, time
import submitit

def speak(text):
    print("out", text)
    print("err", text, file=sys.stderr)
    return [text, os.environ.get("STARTED_BY"), os.getcwd()]

def fail():
    raise ValueError("no such data")

def square(number):
    return number * number

def nap(folder):
    pathlib.Path(folder, "started").touch()
    while not pathlib.Path(folder, "gate").exists():
        time.sleep(0.02)

def vanish():
    os._exit(3)

def place():
    job = submitit.JobEnvironment()
    print("task", job.global_rank)
    return {
        "cluster": job.cluster,
        "executor": os.environ["SUBMITIT_EXECUTOR"],
        "job_id": job.job_id,
        "ranks": [job.global_rank, job.local_rank, job.node],
        "totals": [job.num_tasks, job.num_nodes],
        "hostnames": list(job.hostnames),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "by_blaunch": "LSF_PM_TASKID" in os.environ,
    }

def element():
    job = submitit.JobEnvironment()
    return [job.job_id, job.array_job_id, job.array_task_id, job.num_tasks]

def fail_last():
    job = submitit.JobEnvironment()
    if job.global_rank == job.num_tasks - 1:
        raise ValueError("the last task failed")
    return job.global_rank

def variables(*names):
    return [os.environ.get(name) for name in names]

def nested(folder):
    executor = submitit.AutoExecutor(folder, cluster="lsf")
    inner = executor.submit(square, 5)
    return [submitit.JobEnvironment().job_id, inner.job_id, inner.result()]

class Counter:
    def __init__(self, lives=0):
        self.lives = lives

    def __call__(self, folder):
        pathlib.Path(folder, f"life-{self.lives}").touch()
        while self.lives < 2:
            time.sleep(0.02)
        return self.lives

    def checkpoint(self, folder):
        return submitit.helpers.DelayedSubmission(Counter(self.lives + 1), folder)
"""

HEAD = """
import functools, json, os, pickle, subprocess, sys, time
import submitit
import work

def executor(folder="logs", **options):
    return submitit.AutoExecutor(folder, cluster="lsf", **options)

def answer(**values):
    print(json.dumps(values))
"""


class Program:
    """What a user writes, in a folder on the login host of a site."""

    def __init__(self, site, folder):
        self.site = site
        self.folder = folder
        (folder / "work.py").write_text(WORK)

    def __call__(self, text):
        """Run a program; what it answers."""
        done = self.site.run(sys.executable, self._write(text), cwd=self.folder, timeout=LIMIT_S)
        return json.loads(done.stdout.splitlines()[-1])

    def start(self, text, **options):
        """The same, but it goes on."""
        return self.site.start_command(
            sys.executable, self._write(text), cwd=self.folder, **options
        )

    def _write(self, text):
        path = self.folder / "program.py"
        path.write_text(HEAD + text)
        return path


@pytest.fixture
def program_on(tmp_path):
    def make(site):
        return Program(site, tmp_path)

    return make


@pytest.fixture
def program(lsf, program_on):
    return program_on(lsf)


@pytest.fixture
def patient(lsf_like, program_on):
    """On a site that leaves a function all the time it needs to end."""
    return program_on(lsf_like(kill_interval_s=20, limit_grace_s=30))


def test_a_function_of_the_users_own_module_gives_its_result_and_what_it_printed(program):
    found = program("""
folder = "logs of mine/%j"
python = f"env STARTED_BY=user {sys.executable}"
job = executor(folder, lsf_python=python).submit(work.speak, "this")
merged = executor("merged")
merged.update_parameters(stderr_to_stdout=True, name="a name")
both = merged.submit(work.speak, "that")
answer(
    id=job.job_id, result=job.result(), out=job.stdout(), err=job.stderr(), state=job.state,
    folder=str(job.paths.folder), script=job.paths.submission_file.read_text(),
    again=pickle.loads(pickle.dumps(job)).result(), both=both.result() and both.stdout(),
    no_err=both.stderr(), other=both.job_id,
)
""")
    cwd = str(program.folder)
    assert found["result"] == found["again"] == ["this", "user", cwd]
    assert found["out"].splitlines()[-1].endswith("Exiting after successful completion")
    assert "out this" in found["out"]
    assert found["err"] == "err this\n"
    assert "err that" in found["both"]
    assert found["no_err"] is None
    assert found["folder"] == f"{cwd}/logs of mine/{found['id']}"
    assert found["script"] == program.site.job(found["id"]).script
    assert program.site.job(found["other"]).name == "a name"


def test_the_script_of_functions_is_clean_bash(program, missing):
    if shutil.which("shellcheck") is None:
        missing("shellcheck is not installed")
    script = program("""
job = executor("in %A/%j here").submit(work.square, 3)
job.result()
answer(script=str(job.paths.submission_file))
""")["script"]
    program.site.run("shellcheck", script)


def test_an_exception_and_a_sudden_death_reach_the_caller(program):
    found = program("""
failed = executor().submit(work.fail)
vanished = executor().submit(work.vanish)
vanished._results_timeout_s = 0
errors = [job.exception() for job in (failed, vanished)]
infos = [job.get_info(mode="force") for job in (failed, vanished)]
answer(
    kinds=[type(error).__name__ for error in errors], texts=[str(error) for error in errors],
    states=[info["State"] for info in infos], ids=[failed.job_id, vanished.job_id],
)
""")
    assert found["kinds"] == ["FailedJobError", "UncompletedJobError"]
    assert "ValueError: no such data" in found["texts"][0]
    assert "has not produced any output" in found["texts"][1]
    for job_id in found["ids"]:
        program.site.wait_for_end(job_id)
    assert program.site.job(found["ids"][1]).exit_code == 3


def test_an_array_is_one_bsub_and_keeps_its_limit(program):
    found = program("""
ex = executor("logs/%A")
ex.update_parameters(lsf_array_parallelism=2, name="many")
jobs = ex.map_array(work.square, [1, 2, 3])
with ex.batch():
    batch = [ex.submit(work.element) for _ in range(2)]
    try:
        ex.update_parameters(nodes=2)
    except RuntimeError as error:
        refused = str(error)
answer(
    squares=[job.result() for job in jobs], ids=[job.job_id for job in jobs], refused=refused,
    places=[job.result() for job in batch], batch=[job.job_id for job in batch],
    scripts=len({job.paths.submission_file for job in jobs}),
    states=[job.get_info()["State"] for job in jobs],
)
""")
    assert found["squares"] == [1, 4, 9]
    array = found["ids"][0].partition("_")[0]
    assert found["ids"] == [f"{array}_{index}" for index in (1, 2, 3)]
    assert found["refused"].startswith("Changing parameters within batch")
    second = found["batch"][0].partition("_")[0]
    assert found["places"] == [[f"{second}_{n}", second, str(n), 1] for n in (1, 2)]
    assert program.site.calls()["bsub"] == 2
    assert program.site.job(f"{array}[1]").options["J"] == "many[1-3]%2"
    assert found["scripts"] == 1
    for one in (array, second):
        assert program.site.wait_for_end(one) == "DONE"


def test_every_task_of_two_hosts_knows_its_place_and_gives_its_result(program):
    found = program("""
ex = executor("folder with spaces")
ex.update_parameters(nodes=2, tasks_per_node=2, gpus_per_node=2, cpus_per_task=2, mem_gb=4)
job = ex.submit(work.place)
answer(id=job.job_id, results=job.results(), third=job.task(3).stdout(), all=job.stdout())
""")
    job = program.site.job(found["id"])
    assert job.request["slots"] == 8
    assert job.request["per_host"] == 4
    assert job.options["R"] == ["span[ptile=4] rusage[mem=1000MB]"]
    for rank, task in enumerate(found["results"]):
        assert task["ranks"] == [rank, rank % 2, rank // 2]
        assert task["totals"] == [4, 2]
        assert task["hostnames"] == ["hostA", "hostB"]
        assert task["by_blaunch"] == (rank >= 2)
        assert (task["cluster"], task["executor"]) == ("lsf", "lsf")
        assert task["job_id"] == found["id"]
        assert task["gpus"] == "0,1"
    assert "task 3\n" in found["third"]
    assert "task 0\n" not in found["third"]
    assert all(f"task {rank}\n" in found["all"] for rank in range(4))
    program.site.wait_for_end(found["id"])


def test_a_job_fails_with_any_of_its_tasks(program):
    found = program("""
ex = executor()
ex.update_parameters(nodes=2)
job = ex.submit(work.fail_last)
answer(id=job.job_id, error=str(job.exception()), first=job.task(0).result())
""")
    assert "the last task failed" in found["error"]
    assert found["first"] == 0
    assert program.site.wait_for_end(found["id"]) == "EXIT"


def test_a_jobs_state_is_told_from_its_submission_to_its_cancellation(patient):
    found = patient("""
ex = executor()
ex.update_parameters(lsf_partition="inactive")
waits = ex.submit(work.nap, ".")
runs = executor().submit(work.nap, ".")
while not os.path.exists("started"):
    time.sleep(0.02)
def info(job):
    return job.get_info(mode="force")
states = [info(waits)["State"], info(runs)["State"]]
hosts = info(runs)["NodeList"]
for job in (waits, runs):
    job.cancel()
    job._results_timeout_s = 0
    while not job.done(force_check=True):
        time.sleep(0.1)
try:
    runs.result()
except submitit.core.utils.UncompletedJobError as error:
    text = str(error)
answer(states=states, hosts=hosts, ends=[waits.state, runs.state], text=text, again=runs.cancel())
""")
    assert found["states"] == ["PENDING", "RUNNING"]
    assert found["hosts"] == "hostA"
    assert found["ends"] == ["CANCELLED", "CANCELLED"]
    assert "KeyboardInterrupt" in found["text"]


def test_a_job_that_lsf_has_forgotten_is_done(lsf_like, program_on):
    program = program_on(lsf_like(clean_period_s=0.2))
    found = program("""
job = executor().submit(work.vanish)
def said():
    return subprocess.run(["bjobs", job.job_id], capture_output=True, text=True).stderr
while "is not found" not in said():
    time.sleep(0.05)
first = job.done(force_check=True)
job.wait()
answer(first=first, state=job.state, done=job.done())
""")
    assert found == {"first": False, "state": "FORGOTTEN", "done": True}


def test_a_checkpoint_goes_on_after_the_run_limit_and_after_a_preemption(patient):
    process = patient.start(
        """
job = executor("logs").submit(work.Counter(), ".")
open("id", "w").write(job.job_id + "\\n")
answer(result=job.result(), out=job.stdout())
""",
        stdout=-1,
    )
    site, folder = patient.site, patient.folder
    site.wait_for((folder / "life-0").exists)
    job_id = site.wait_for(lambda: (folder / "id").exists() and (folder / "id").read_text())[:-1]
    site.reach_limit(job_id)
    site.wait_for((folder / "life-1").exists)
    site.preempt(job_id)
    out, _ = process.communicate(timeout=LIMIT_S)
    found = json.loads(out)
    assert found["result"] == 2
    assert "(2 remaining timeouts)" in found["out"]
    assert site.wait_for_end(job_id) == "DONE"
    assert site.job(job_id).attempts == 3


def test_a_refused_requeue_is_the_functions_error(patient):
    process = patient.start(
        """
job = executor("logs").submit(work.Counter(), ".")
open("id", "w").write(job.job_id + "\\n")
answer(error=str(job.exception()))
""",
        stdout=-1,
    )
    site, folder = patient.site, patient.folder
    site.wait_for((folder / "life-0").exists)
    job_id = site.wait_for(lambda: (folder / "id").exists() and (folder / "id").read_text())[:-1]
    with site.refusing_requeues():
        site.reach_limit(job_id)
        out, _ = process.communicate(timeout=LIMIT_S)
    assert "User permission denied" in json.loads(out)["error"]
    site.wait_for_end(job_id)


def test_a_task_submits_jobs_of_its_own(program):
    outer, inner, result = program("""
answer(found=executor().submit(work.nested, os.path.abspath("logs")).result())
""")["found"]
    assert (result, outer != inner) == (25, True)


def test_a_profile_and_lsf_parameters_say_how_a_job_is_asked_for(program):
    (program.folder / "hpcdist.yaml").write_text("""\
clusters:
  campus:
    scheduler: lsf
    partition: short
    cpus_per_gpu: 3
    environment: {OF_THE_PROFILE: "1"}
    setup: [export OF_SETUP=2]
  other: {scheduler: lsf, partition: nowhere}
default: other
""")
    found = program("""
ex = submitit.AutoExecutor("logs")
ex.update_parameters(
    lsf_profile="campus", lsf_partition="gpuv100", lsf_environment={"MINE": "a b"}, mem_gb=3,
    lsf_lsf={"mem_unit": "MB"}, gpus_per_node=1, timeout_min=61, lsf_account="chemistry",
)
names = ("MINE", "OF_THE_PROFILE", "OF_SETUP", "CUDA_VISIBLE_DEVICES")
job = ex.submit(work.variables, *names)
answer(cluster=ex.cluster, result=job.result(), id=job.job_id)
""")
    assert found["cluster"] == "lsf"
    assert found["result"] == ["a b", None, "2", "0"]
    job = program.site.job(found["id"])
    assert (job.queue, job.project, job.run_limit_min) == ("gpuv100", "chemistry", 61)
    assert job.options["R"] == ["span[hosts=1] rusage[mem=1000]"]
    assert job.options["gpu"] == "num=1:mode=exclusive_process"
    program.site.wait_for_end(found["id"])


def test_what_cannot_be_is_refused_with_its_name_before_anything_is_submitted(program):
    found = program("""
cases = [
    dict(lsf_queue="normal"), dict(lsf_qos="high"), dict(lsf_time_limit_min=3),
    dict(lsf_profile="nowhere"), dict(name="a[1-3]"), dict(lsf_environment={"API_TOKEN": "x" * 40}),
    dict(lsf_lsf={"options": ["-J"]}), dict(nodes="two"),
]
said = []
for case in cases:
    try:
        executor().update_parameters(**case)
        said.append("nothing")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
for folder in ("logs/%t", "logs/%a", "50%/logs"):
    try:
        executor(folder).submit(work.square, 1)
        said.append("nothing")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
small = executor(lsf_max_pickle_size_gb=1e-6)
try:
    small.map_array(work.square, [b"x" * 2000, b"y"])
except RuntimeError as error:
    said.append(str(error))
ex = executor()
ex.update_parameters(lsf_partition="nowhere")
try:
    ex.submit(work.square, 1)
except Exception as error:
    said.append(str(error))
answer(said=said, left=os.listdir("logs"))
""")
    expected = [
        "NameError: Unknown argument 'queue' for executor 'lsf'",
        "NameError: Unknown argument 'qos'",
        "NameError: Unknown argument 'time_limit_min'",
        "ProfileError: there is no cluster called 'nowhere'",
        "ValueError: Parameter 'name' is 'a[1-3]'",
        "API_TOKEN",
        "lsf.options does not list",
        'Parameter "nodes" expected type',
        "the folder holds %t",
        "%a is in the folder path but this is not a job array",
        "the path holds '%'",
        "2 functions with their arguments are",
        "nowhere: No such queue. Job not submitted.",
    ]
    for said, part in zip(found["said"], expected, strict=True):
        assert part in said
    assert found["left"] == []
    assert program.site.jobs() == []


def test_a_daemon_that_does_not_answer_leaves_the_state_unknown(program):
    site, folder = program.site, program.folder
    process = program.start(
        """
from hpcdist.schedulers.lsf import commands
job = executor().submit(work.nap, ".")
print(job.job_id, flush=True)
sys.stdin.readline()
commands.call_lsf.__kwdefaults__["timeout_s"] = 0.3  # instead of half a minute
states = [job.state, job.done()]
print("silent", flush=True)
sys.stdin.readline()
commands.call_lsf.__kwdefaults__["timeout_s"] = 30
import time
deadline = time.monotonic() + 60
while job.get_info(mode="force").get("State") != "RUNNING" and time.monotonic() < deadline:
    time.sleep(0.1)
states.append(job.state)
open("gate", "w").close()
job.result()
answer(states=states)
""",
        stdin=-1,
        stdout=-1,
    )
    job_id = process.stdout.readline().strip()
    site.wait_for((folder / "started").exists)
    with site.silent():
        process.stdin.write("\n")
        process.stdin.flush()
        assert "silent\n" in iter(process.stdout.readline, "")  # behind submitit's warning
    out, _ = process.communicate("\n", timeout=LIMIT_S)
    assert json.loads(out.splitlines()[-1])["states"] == ["UNKNOWN", False, "RUNNING"]
    assert site.wait_for_end(job_id) == "DONE"
