"""Which profile counts, where its values come from, and what is refused in which words."""

import grp
import os
import re
from pathlib import Path

import pytest
from another_user import NOBODY, needs_root

from hpcdist.base.errors import ProfileError
from hpcdist.cluster.load import (
    NO_PROFILE,
    all_profiles,
    choose_cluster,
    load_profile,
    shipped_file,
    shipped_files,
    with_channels,
)
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.load import Flag

TWO = """
default: helix
clusters:
  jura: {partition: gpu}
  helix: {partition: batch}
"""


def error_of(name=None, **options):
    with pytest.raises(ProfileError) as caught:
        load_profile(name, **options)
    return caught.value


def of_one(keys):
    return f"clusters:\n  jura: {keys}\n"


def test_without_a_file_the_profile_is_empty_and_all_is_by_default(profiles):
    loaded = load_profile()
    assert (loaded.name, loaded.profile) == (None, ClusterProfile())
    assert set(loaded.origins.values()) == {"default"}
    assert set(with_channels(loaded, ["none"]).origins.values()) == {"default"}


def test_of_several_profiles_without_a_default_none_is_chosen(profiles):
    profiles.project("clusters: {jura: {partition: gpu}, helix: {}}\n")
    loaded = load_profile()
    assert (loaded.name, loaded.profile) == (None, ClusterProfile())
    assert loaded.notes == [
        "no cluster profile is used: hpcdist.yaml has jura, helix and no default; choose one with "
        "--cluster"
    ]


def test_a_name_wins_over_the_variable_and_that_over_the_default(profiles, monkeypatch):
    profiles.project("default: p\nclusters: {p: {}, v: {}, n: {}}\n")
    assert load_profile().name == "p"
    monkeypatch.setenv("HPCDIST_CLUSTER", "v")
    assert load_profile().name == "v"
    assert load_profile("n").name == "n"


def test_the_users_file_counts_where_the_project_has_none_and_flags_win(profiles):
    profiles.user_file.write_text(of_one("{partition: gpu, account: mine, qos: low}"))
    loaded = load_profile(flags={"qos": Flag(name="--qos", value="urgent")})
    assert loaded.profile == ClusterProfile(partition="gpu", account="mine", qos="urgent")
    assert loaded.origins["partition"] == str(profiles.user_file)
    assert loaded.origins["qos"] == "--qos"
    assert loaded.origins["mem_gb"] == "default"
    profiles.project(of_one("{account: group, lsf: null}"))
    loaded = load_profile()
    assert loaded.profile == ClusterProfile(account="group")
    assert loaded.origins["account"] == loaded.origins["lsf"] == "hpcdist.yaml"


def test_the_nearest_file_above_counts_up_to_the_root_of_the_repository(profiles, monkeypatch):
    outer = profiles.project(of_one("{partition: outer}"))
    inner = profiles.project_folder / "repository" / "src"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert load_profile().origins["partition"] == str(outer)
    (inner.parent / ".git").mkdir()
    assert load_profile().name is None
    (inner.parent / "hpcdist.yaml").write_text(of_one("{partition: inner}"))
    assert load_profile().profile.partition == "inner"


@needs_root
def test_a_file_that_another_user_put_into_a_folder_for_everyone_is_refused(profiles, monkeypatch):
    path = profiles.project(of_one("{setup: [evil]}"))
    below = profiles.project_folder / "mine"
    below.mkdir()
    monkeypatch.chdir(below)
    os.chown(path, 12345, 12345)
    assert load_profile().profile.setup == ["evil"]  # of a colleague, in a folder of the group
    profiles.project_folder.chmod(0o1777)
    assert "belongs to another user (number 12345)" in error_of().message


@needs_root
@pytest.mark.parametrize(
    "key",
    [
        "setup: [a]",
        "directives: [--x]",
        "lsf: {launcher: 'ssh {host} {command}'}",
    ],
)
def test_what_a_colleague_may_have_written_is_executed_with_a_note_that_names_the_owner(
    profiles, key
):
    path = profiles.project(of_one(f"{{{key}}}"))
    assert load_profile().notes == []
    os.chown(path, NOBODY, NOBODY)
    os.chown(path.parent, 0, NOBODY)
    path.chmod(0o664)
    path.parent.chmod(0o770)
    (note,) = load_profile().notes
    name = "lsf.launcher" if "lsf" in key else key.partition(":")[0]
    by = f"can be written by the group {grp.getgrgid(NOBODY).gr_name}"
    assert note == (
        f"{name} from {path}, which belongs to nobody, will be run as you; {path} {by} and "
        f"{path.parent} {by}"
    )


@pytest.mark.parametrize("key", ["setup: [a]", "azure: {image: torch}"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_everyone_may_have_written_is_not_executed(profiles, what, key):
    path = profiles.project(of_one(f"{{{key}}}"))
    (path if what == "file" else path.parent).chmod(0o777)
    error = error_of()
    assert f"has {'setup' if 'setup' in key else 'azure.image'}, and " in error.message
    assert "can be written by everyone: it would be run as you" in error.message
    assert "chmod o-w" in error.hint
    profiles.project(of_one("{partition: p}"))
    assert load_profile().profile.partition == "p"


def test_the_path_of_python_is_relative_to_the_file(profiles, monkeypatch):
    profiles.project(of_one("{python: .venv/bin/python}"))
    below = profiles.project_folder / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert load_profile().profile.python == f"{profiles.project_folder}/.venv/bin/python"
    profiles.project(of_one("{python: python3.11}"))
    assert load_profile().profile.python == "python3.11"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (of_one("{partitoin: gpu}"), "cluster jura: partitoin is not a known key", "partition?"),
        (of_one("{cpus_per_gpu: 0}"), "cluster jura: cpus_per_gpu is 0, must be 1 or more", ""),
        (of_one("{scheduler: slrum}"), 'scheduler is "slrum", must be auto', "did you mean slurm?"),
        (of_one("{account: 0123}"), "account is 123, must be one word", "in quotes"),
        (of_one("{environment: {A: 4}}"), "environment.A is 4, must be text", "in quotes"),
        (of_one("{setup: [1]}"), "setup is [1], must be a list, each value bash", ""),
        ("cluster: {}\n", "cluster is not a known key", "the file takes: clusters, default"),
        ("default: jrua\n" + of_one("{}"), "default: there is no cluster called 'jrua'", "jura?"),
        (of_one("{python: .}"), "which is a folder", "./bin/python"),
        ("a: [\n", "not valid YAML: line 2", "indentation"),
        ("{partition: a b}", 'partition is "a b", must be one word, as the scheduler knows it', ""),
        ("{account: --x}", 'account is "--x", must be one word', ""),
        ('{partition: "a\\u202eb"}', "must be one word", ""),
        ("{environment: {A-B: x}}", 'has "A-B", which is not the name of a variable', "letters"),
        ("{environment: {HF_TOKEN: hf_abc}}", "gives HF_TOKEN a value that looks secret", "export"),
        ("{setup: ['export HF_TOKEN=hf_abc']}", "setup gives HF_TOKEN a value", "export"),
        ("{account: ghp_0123456789}", "account holds a value that looks secret", "private file"),
        ("{directives: ['--comment=ghp_0123456789']}", "directives holds a value that", ""),
        ('{setup: ["a\\rb"]}', "each value bash without control characters", "leave setup out"),
        ("{directives: ['#SBATCH --x']}", "each value options of the scheduler", ""),
        ("{directives: ['--export=ALL,X_TOKEN=abc']}", "directives gives X_TOKEN", "export"),
        ("{lsf: {gpu: 'num={gpu}'}}", 'lsf.gpu is "num={gpu}", must be one line', ""),
        ("{lsf: {gpu: 'a\"b'}}", "without quotes", ""),
        ("{lsf: {launcher: 'x {command}'}}", "one line with {host} and {command}", ""),
        ("{lsf: {launcher: 'env A_TOKEN=b {host} {command}'}}", "gives A_TOKEN", "export it"),
        ("{lsf: {mem_per: node}}", 'lsf.mem_per is "node", must be host or job or slot', ""),
        ("{azure: {subscription: mine}}", 'azure.subscription is "mine", must be an id', ""),
        ("{azure: {environment: torch}}", 'azure.environment is "torch"', ""),
    ],
)
def test_a_mistake_is_told_with_the_file_the_key_and_the_value(profiles, text, message, hint):
    profiles.project(of_one(text) if text.startswith("{") else text)
    error = error_of()
    assert error.message.startswith("hpcdist.yaml: ")
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    "text",
    [
        "{directives: [--exclusive, --mem-per-cpu=4G, '--exclude=n[1-2]', '-w n1', -W]}",
        "{scheduler: lsf, directives: ['-R \"select[a] rusage[b=1]\"', -x, '-G group', '-M 4GB']}",
        "{scheduler: lsf, directives: ['-R \"select[a] cu[type=rack]\"', '-R fast', -In]}",
        "{environment: {TOKENIZERS_PARALLELISM: 'false', WANDB_API_KEY_FILE: /home/me/key}}",
        "{setup: ['export HF_TOKEN=$(cat ~/.hf)', 'source ~/venv/bin/activate']}",
        "{constraint: 'a100&ib', partition: 'gpu,long'}",
    ],
)
def test_what_can_stand_in_a_script_is_taken(profiles, text):
    profiles.project(of_one(text))
    assert load_profile().profile != ClusterProfile()


def test_an_unknown_name_lists_the_known_ones_nearest_first_and_the_files(profiles, monkeypatch):
    profiles.project(TWO)
    error = error_of("juar")
    assert error.message == "there is no cluster called 'juar'"
    assert error.hint == "did you mean jura? clusters are jura, helix, in hpcdist.yaml"
    monkeypatch.setenv("HPCDIST_CLUSTER", "nowhere")
    assert error_of().message.startswith("HPCDIST_CLUSTER: there is no cluster called 'nowhere'")


def test_a_file_that_cannot_be_read_is_an_error(profiles):
    (profiles.project_folder / "hpcdist.yaml").write_bytes(b"\xff")
    assert error_of().message.startswith("hpcdist.yaml ")


# Which scheduler a submission goes to.


@pytest.mark.parametrize("written", ["auto", "slurm"])
def test_the_scheduler_is_the_profiles_unless_the_user_names_one(profiles, written):
    profiles.project(of_one(f"{{scheduler: {written}, partition: gpu}}"))
    for asked, expected in ((None, written), ("auto", written), ("slurm", "slurm")):
        scheduler, loaded = choose_cluster(asked, None, {})
        assert (scheduler, loaded.name, loaded.profile.partition) == (expected, "jura", "gpu")


def test_a_profile_for_another_scheduler_is_refused(profiles):
    profiles.project(of_one("{scheduler: slurm}"))
    with pytest.raises(ProfileError, match=r"hpcdist.yaml: cluster jura is for slurm, not lsf"):
        choose_cluster("lsf", None, {})


def test_this_machine_goes_by_no_profile_and_takes_no_option_about_a_cluster(profiles):
    profiles.project(of_one("{qso: x}"))  # a broken one
    assert choose_cluster("local", None, {}) == ("local", NO_PROFILE)
    with pytest.raises(ProfileError, match="--qos high is for a cluster"):
        choose_cluster("local", None, {"qos": Flag(name="--qos", value="high")})


DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cluster-profiles.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_page_is_a_profile(profiles, text):
    profiles.project(text)
    _, found = all_profiles()
    assert found
    for each in found:
        load_profile(each)


@pytest.mark.parametrize("name", shipped_files())
def test_a_file_that_ships_is_of_profiles_and_says_which_is_the_default(profiles, name):
    profiles.project(shipped_file(name))
    default, found = all_profiles()
    assert default in found
    for each in found:
        load_profile(each)
