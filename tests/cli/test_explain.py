"""`hpcdist explain`: scripts line by line, keys, exit codes, verdicts, runs and words."""

import json

import pytest

from hpcdist.base.errors import EXIT_CODES
from hpcdist.cli.explain import meanings
from hpcdist.cli.main import main
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.runs.verdict import Verdict

PROFILES = """
clusters:
  slurm: &one
    scheduler: slurm
    partition: gpu
    account: proj42
    constraint: fast
    cpus_per_gpu: 4
    mem_gb: 64
    setup: [module load cuda, source venv/bin/activate]
    environment: {NCCL_DEBUG: INFO}
    directives: [--exclusive]
  lsf: {<<: *one, scheduler: lsf, directives: [-B]}
  pbs: {<<: *one, scheduler: pbs, directives: [-m abe]}
  azure:
    scheduler: azure
    setup: [module load cuda]
    environment: {NCCL_DEBUG: INFO}
    azure:
      subscription: 00000000-1111-2222-3333-444444444444
      resource_group: ml-course
      workspace: ml-course
      compute: gpu-cluster
      image: i
"""
BEHIND = ("#SBATCH", "#BSUB", "#PBS")


@pytest.mark.parametrize("scheduler", ["slurm", "lsf", "pbs", "azure", "local"])
def test_every_line_of_a_script_is_told_and_every_directive_with_its_reason(hpcdist, scheduler):
    hpcdist.write("hpcdist.yaml", PROFILES)
    place = ("--local",) if scheduler == "local" else ("--cluster", scheduler)
    options = ("ddp", *place, "--nodes", "2", "--gpus", "2", "--time", "90")
    script = hpcdist("render", *options).stdout.splitlines()
    done = hpcdist("explain", *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [part["line"] for part in found] == [line for line in script if line.strip()]
    for part in found:
        assert part["why"] or not part["line"].startswith(BEHIND), part


def test_a_line_names_the_keys_and_the_numbers_that_it_comes_from(hpcdist):
    hpcdist.write("hpcdist.yaml", PROFILES)
    options = ("ddp", "--cluster", "slurm", "--nodes", "2", "--gpus", "2", "--json")
    found = json.loads(hpcdist("explain", *options).stdout)
    keys = {part["line"].strip(): part["keys"] for part in found}
    assert keys["#SBATCH --nodes=2"] == ["resources.nodes"]
    assert "cpus_per_gpu" in keys["#SBATCH --cpus-per-task=8"]
    assert keys["#SBATCH --mem=61036M"][0] == "resources.mem_gb"
    assert keys["#SBATCH --exclusive"] == ["directives"]
    assert keys["module load cuda"] == ["setup"]
    why = {part["line"]: part["why"] for part in found}
    assert "2 GPUs per node x 4 CPUs per GPU, 16 in all" in why["#SBATCH --cpus-per-task=8"]
    assert why["#SBATCH --mem=61036M"].startswith("64 GB per node")


def test_nothing_of_the_users_is_imported_before_a_submission(hpcdist):
    hpcdist.write("nets.py", "import pathlib\npathlib.Path('imported').touch()\n")
    for verb in ("render", "explain"):
        done = hpcdist(verb, "ddp", "--scheduler", "slurm", "--set", "model.name=nets:Net")
        assert done.returncode == 0, done.stderr
        assert not (hpcdist.folder / "imported").exists(), verb


def test_of_a_sweep_the_first_script_is_explained(hpcdist):
    sweep = ("--sweep", "nodes=1,2 train.lr=0.1,0.2")
    done = hpcdist("explain", "ddp", "--scheduler", "slurm", *sweep)
    assert "the script of the first run: nodes=1 train.lr=0.1" in done.stderr
    assert "#SBATCH --nodes=1\n" in done.stdout


def explained(capsys, *words):
    """What is printed as JSON, in this process: a fork per word would take seconds."""
    assert main(["explain", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_name_is_told_with_all_that_it_means(capsys):
    def told(*words):
        return [(one["kind"], one["name"], one["text"][0]) for one in explained(capsys, *words)]

    assert told("75") == [("an exit code", "75", EXIT_CODES[75])]
    assert told("137")[0][2].endswith("SIGKILL ended")
    assert told("out-of-memory")[0][1] == "out_of_memory"
    assert told("pending")[0][2] == meanings("state")["pending"]
    assert told("accumulate")[0][:2] == ("a key of a job file", "train.accumulate")
    assert told("gpu_request")[0][0] == "a key of hpcdist.yaml"
    assert told("Exposed", "communication")[0][1] == "exposed communication"
    assert [kind for kind, *_ in told("launch")] == ["a section of a job file", "a kind of verdict"]


def test_a_name_that_is_nothing_is_refused_with_what_is_near(capsys, tmp_path):
    for word, hint in (("hnag", "did you mean hang? "), ("nonsense", "jobs are listed by")):
        assert main(["explain", word, "--runs", str(tmp_path)]) == 2
        error, hinted = capsys.readouterr().err.splitlines()
        assert f"{word!r} is not anything" in error
        assert hinted.startswith(f"hint: {hint}")


def test_a_run_is_told_by_its_verdict_with_what_to_do(tmp_path, capsys):
    run = Run.create(tmp_path, "ddp")
    run.write_spec(RunSpec(id=run.id, created_s=1.0, scheduler="local"))
    run.write_verdict(
        Verdict(
            kind="out_of_memory",
            state="failed",
            message="rank 1 (node 0, host n1) has no memory",
            exit_code_of_run=1,
            log="logs/rank-00001.log",
        )
    )
    (found,) = explained(capsys, "last", "--runs", str(tmp_path))
    assert (found["kind"], found["name"]) == ("a run", run.id)
    assert found["text"][0] == "rank 1 (node 0, host n1) has no memory"
    assert "train.batch_size" in " ".join(found["text"])
    assert found["text"][1] == f"out_of_memory: {meanings('kind')['out_of_memory']}"


@pytest.mark.parametrize("word", ["memory", "NCCL", "UNKWN", "TERM_RUNLIMIT", "NODE_FAIL"])
def test_words_of_the_field_come_before_runs_of_such_a_name(capsys, tmp_path, word):
    Run.create(tmp_path, word.lower())
    assert explained(capsys, word, "--runs", str(tmp_path))[0]["kind"].startswith("a word")
