"""Loading jobs: where they are found, what is refused, and in which words."""

import itertools
import os

import msgspec
import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.check import parse_minutes
from hpcdist.job.comparison import list_jobs
from hpcdist.job.goal import Goal, parse_goal
from hpcdist.job.load import load_job, parse_flag
from hpcdist.job.spec import ScriptJob

BOMB = "a: &a [x, x]\n" + "".join(
    f"k{n}: &{after} [{', '.join(['*' + before] * 9)}]\n"
    for n, (before, after) in enumerate(itertools.pairwise("abcdefghij"))
)


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def error_of(name, **options):
    with pytest.raises(JobError) as caught:
        load_job(name, **options)
    return caught.value


# What is loaded.


def test_a_local_job_hides_a_shipped_one(tmp_path):
    write(tmp_path / "jobs" / "ddp.yaml", "workload: train\ntrain: {epochs: 3}\n")
    loaded = load_job("ddp")
    assert loaded.source == "jobs/ddp.yaml"
    assert loaded.job.train.epochs == 3


def test_a_script_becomes_a_job_with_its_arguments_and_an_absolute_path(tmp_path):
    write(tmp_path / "train.py", "raise SystemExit('it ran')\n'\\d'\n")  # it is only compiled
    job = load_job("train.py", script_args=["--lr", "0.1"]).job
    assert isinstance(job, ScriptJob)
    assert (job.script, job.args) == (str(tmp_path / "train.py"), ["--lr", "0.1"])
    text = "workload: script\nscript: ../train.py\nargs: [a]\n"
    path = write(tmp_path / "a 'b'\n\u00e9" / 'my "job".yaml', text)
    job = load_job(path, script_args=["b"]).job
    assert (job.script, job.args) == (str(tmp_path / "train.py"), ["a", "b"])
    assert job.name == 'my "job"'


def test_numbers_and_words_mean_what_yaml_1_2_says(tmp_path):
    path = write(
        tmp_path / "a.yaml",
        "workload: train\ndescription: no\ncheckpoint: {resume: 2024-05-01}\n"
        "train: {lr: 1e-3, batch_size: 010}\nmodel: {name: 1:30}\n",
    )
    job = load_job(path).job
    assert (job.train.lr, job.train.batch_size) == (0.001, 10)
    assert (job.description, job.model.name) == ("no", "1:30")
    assert job.checkpoint.resume == os.path.abspath("2024-05-01")


def test_a_flag_goes_before_a_set_which_goes_before_the_file_and_the_last_set_counts(tmp_path):
    path = write(tmp_path / "a.yaml", "workload: train\nresources:\ntrain: {lr: 1}\n")
    sets = ["train.lr=1e-2", "train.lr=1e-3", "resources={gpus: 3, nodes: 4}", "model.args.width=3"]
    job = load_job(path, flags={"resources.nodes": parse_flag("--nodes", "2")}, overrides=sets).job
    assert job.train.lr == 0.001
    assert job.model.args == {"width": 3}
    assert (job.resources.nodes, job.resources.gpus) == (2, 3)


def test_a_value_is_text_where_the_key_wants_text():
    job = load_job("ddp", overrides=["name=2024", "data.root=1e5", "description=a: b: c"]).job
    assert (job.name, job.data.root, job.description) == ("2024", os.path.abspath("1e5"), "a: b: c")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        *(("1.5", 1.5), ("0", 0), ("30:30", 30.5), ("1:30:00", 90), ("2-0", 2880)),
        *(("2-12:30", 3630), ("1-00:00:30", 1440.5)),
        *((text, None) for text in ("", "-5", "1:", "1:2:3:4", "1-1:1:1:1", "2h", "1e3")),
    ],
)
def test_a_time_limit_is_read_as_sbatch_reads_it(text, minutes):
    if minutes is not None:
        assert parse_minutes(text, origin="--time") == minutes
        return
    with pytest.raises(JobError, match=r"--time .*: must be a time limit in minutes") as caught:
        parse_minutes(text, origin="--time")
    assert "--time 1:30:00" in caught.value.hint


def test_a_goal_is_a_loss_or_an_accuracy():
    goals = {"accuracy=0.97": 0.97, "accuracy=99%": 0.99, "accuracy = 97": 0.97, "loss=0.5": 0.5}
    for text, value in goals.items():
        assert parse_goal(text) == Goal(text.split("=")[0].strip(), value)
    for text in ("loss", "loss=nan", "speed=3", "accuracy=3000"):
        with pytest.raises(ValueError, match="must be accuracy=SHARE"):
            parse_goal(text)


# What is refused.


def test_zero_nodes_are_refused_with_the_file_and_the_key(tmp_path):
    write(tmp_path / "jobs" / "zero.yaml", "workload: train\nresources:\n  nodes: 0\n")
    error = error_of("zero")
    assert error.message == "jobs/zero.yaml: resources.nodes is 0, must be 1 or more"
    assert error.hint == "leave resources.nodes out for its default, 1"


@pytest.mark.parametrize("text", ["0", "1.5", "x", "99999999999999999999", "true", ""])
def test_a_wrong_number_of_nodes_is_refused_with_the_flag(text):
    error = error_of("ddp", flags={"resources.nodes": parse_flag("--nodes", text)})
    assert error.message.startswith("--nodes: resources.nodes is ")


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("nodes=2", "nodes is not a known key", "did you mean resources.nodes?"),
        ("quux=1", "quux is not a known key", "a job takes: name, workload"),
        ("train.optimizer=adamm", "must be adam or adamw or sgd", "did you mean adam"),
        ("train.epochs=0", "epochs is 0, must be 1 or more", "correct --set train.epochs=0, or"),
        ("train.lr=.inf", "must be a finite number", "or leave it out"),
        ("train.keep_best=yes", 'keep_best is "yes", must be true or false', "or leave it out"),
        ("launch.port_range=[1, 2]", "must be a list of 2 values", "or leave it out"),
        ("model=resnet18", "must be a section with keys", "model takes: name, args"),
        ("description.x=1", 'description is {"x": 1}, must be text', "leave it out"),
        ("workload=trian", "must be one of train, lightning, script", "did you mean train?"),
        ("train.lr", "must be key.path=value", "for example"),
    ],
    ids=lambda value: value.split(" ")[0],
)
def test_a_wrong_set_is_refused(override, message, hint):
    error = error_of("ddp", overrides=[override])
    assert message in error.message
    assert error.message.startswith(f"--set {override}: ")
    assert hint in error.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a.yaml is empty"),
        ("- a\n", "holds a list, must be keys with values"),
        ("workload: [train\n", "not valid YAML: line 2, column 1"),
        ("workload: train\nworkload: train\n", "column 1: the key 'workload' appears twice"),
        ("1: 2\n", "the key 1 is not text"),
        ("a: " + "[" * 100_000, "nested more than 50 levels deep"),
        ("train:\n  epochs 3\n  lr: 1\n", "line 2: there is no colon after epochs"),
        ("a: !!python/object/apply:os.system [true]\n", "could not determine a constructor"),
        (BOMB, "100 aliases, or one in what has an anchor"),
        ("workload: train\ntrain:\n  epochs 3\n", 'line 3: train is "epochs 3", must be'),
        (f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 9_000}]\n", "100 aliases, or one in what has"),
        ("k: " + "x" * 300_000, "cannot be read: it has 300 kB, and no more than 256 kB are read"),
        ("a: b\n--- \nc: d\n", "not valid YAML"),
        ("train: {}\n", "a.yaml: workload is missing"),
        ("workload: 5\n", "workload is 5, must be one of train, lightning, script"),
        ("workload: script\n", "a.yaml: script is missing"),
        ("workload: script\nscript: gone.py\n", "script gone.py cannot be read: No such file"),
        ("workload: train\nresources: {nodes: null}\n", "resources.nodes is null, must be"),
    ],
    ids=range(18),
)
def test_a_broken_job_file_is_refused(tmp_path, content, message):
    error = error_of(write(tmp_path / "a.yaml", content))
    assert message in error.message
    assert error.message.startswith(str(tmp_path / "a.yaml"))
    assert error.hint


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("dpd", "there is no job called 'dpd'", "did you mean ddp? jobs are ddp"),
        ("", "there is no job called ''", "jobs are"),
        ("dpd.yaml", "dpd.yaml: there is no such file", "did you mean ddp?"),
        ("folder", "folder is a directory, must be a file", "run a package with -m"),
        ("folder.yaml", "folder.yaml is a directory, must be a file", "give a job file"),
        ("a.ipynb", "a.ipynb does not have the name", "nbconvert --to script a.ipynb"),
        ("run.sh", "run.sh does not have the name of a Python", "with --no-python: ./run.sh"),
        ("/bin/sh", "/bin/sh is not a Python script, but binary", "with --no-python: /bin/sh"),
        ("run", "run: line 2: invalid syntax: echo hello", "with --no-python: ./run"),
    ],
    ids=repr,
)
def test_what_is_no_job_is_refused(tmp_path, name, message, hint):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.yaml").mkdir()
    write(tmp_path / "a.ipynb", "{}")
    write(tmp_path / "run.sh", "a=1")
    write(tmp_path / "run", "#!/bin/sh\necho hello\n")
    error = error_of(name)
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ny = = 2\n", "train.py: line 2: invalid syntax: y = = 2"),
        ("x = 1\0\n", "train.py"),
        ("-" * 100_000 + "1\n", "train.py"),
    ],
    ids=["syntax", "null byte", "nesting"],
)
def test_a_script_with_a_syntax_error_is_refused_and_not_run(tmp_path, source, message):
    write(tmp_path / "train.py", source)
    assert message in error_of("train.py").message


def test_script_arguments_for_a_train_job_are_refused():
    error = error_of("ddp", script_args=["--lr", "0.1"])
    assert "ddp is a train job and takes no script arguments" in error.message
    assert "--set" in error.hint


# What is listed.


def test_jobs_are_listed_and_a_broken_one_says_what_is_wrong(tmp_path):
    write(tmp_path / "jobs" / "mine.yaml", "workload: train\ndescription: |\n  two\n  lines\n")
    write(tmp_path / "jobs" / "bad.yaml", "workload: train\nresources: {nodes: 0}\n")
    write(tmp_path / "jobs" / ".hidden.yaml", "")
    listed = {job.name: job for job in list_jobs()}
    assert {"mine", "bad", "ddp"} <= listed.keys()
    assert listed["mine"].description == "two lines"
    assert listed["bad"].error == "jobs/bad.yaml: resources.nodes is 0, must be 1 or more"
    assert msgspec.to_builtins(listed["ddp"])["workload"] == "train"
