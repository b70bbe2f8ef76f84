"""Runs that are brought home: by a slow line, as they grow, and from a host that lies."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from another_user import NOBODY, needs_root
from login_node import LoginNode, missing_programs
from slow_line import SlowLine

import hpcdist
from hpcdist.base.errors import ProfileError
from hpcdist.runs.remote import read_remote
from hpcdist.runs.run import Run, all_runs

PERF = Path(__file__).parents[2] / "perf"
LIMIT_S = 60
ID = "ddp-20261122-230221-przd"


@pytest.fixture
def laptop(tmp_path, monkeypatch, call_laptop):
    """Calls the command in a project called work, with the given words for ssh."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(*arguments, ssh, code=0, **options):
        done = call_laptop(*arguments, ssh=ssh, **options)
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    return call


def figures(text):
    """What a summary says of runs, without where they are, and whether they are alike by that."""
    where = ("path", "cluster", "ran_with", "configuration")
    return [
        {key: value for key, value in run.items() if key not in where} for run in json.loads(text)
    ]


def test_runs_come_home_by_one_connection_over_a_slow_line(laptop, monkeypatch, missing, tmp_path):
    """And only what has been added, the next time."""
    if lacking := missing_programs():
        missing(lacking)
    monkeypatch.syspath_prepend(PERF)
    from made_runs import make_runs

    node = LoginNode()
    line = SlowLine(node.port, round_trip_s=0.2)
    try:
        node.install()
        node.start()
        node.reach_by(line.port)
        runs = node.home / "hpcdist" / "work" / "runs"
        runs.parent.mkdir(parents=True)
        make_runs(runs, num_runs=12, num_ranks=2, num_windows=50)
        there = laptop("summary", "--json", "--runs", str(runs), ssh="false")[0]

        out, _ = laptop("summary", "--host", "login", "--json", ssh=node.ssh)
        assert figures(out) == figures(there)
        assert line.connections == 1
        assert {run["cluster"] for run in json.loads(out)} == {"login"}
        assert {run["cluster"] for run in json.loads(laptop("runs", "--json", ssh="false")[0])} == {
            "login"
        }
        first_bytes, line.received_bytes = line.received_bytes, 0

        file = runs / all_runs(runs)[0].id / "events" / "rank-00000.jsonl"
        content = file.read_bytes()
        file.write_bytes(content + content.splitlines(keepends=True)[-1])
        laptop("summary", "--json", ssh=node.ssh)
        assert line.connections == 2
        assert line.received_bytes < first_bytes / 10
        brought = tmp_path / "work" / "runs" / file.relative_to(runs)
        assert brought.read_bytes() == file.read_bytes()
        file.write_bytes(content.replace(b"1", b"2"))  # it is another file now, and comes whole
        laptop("summary", "--json", ssh=node.ssh)
        assert brought.read_bytes() == file.read_bytes()
        first, second, *_ = [run.id for run in all_runs(runs)]
        file.write_bytes(content)
        laptop("diff", first, second, ssh=node.ssh)
        assert brought.read_bytes() == content
        _, err = laptop("attach", first, ssh="false", code=2)
        assert f"run {first} is at login, and attach opens its terminal there" in err
        assert "hint: log in with ssh login" in err
    finally:
        line.close()
        node.close()


LIAR = """\
import os, sys
from hpcdist.remote import wire
if "-G" in sys.argv:
    sys.exit()
word = sys.argv[-1].rsplit(" ", 1)[-1]
out = sys.stdout.buffer
out.write(f"hpcdist:{{word}}:serves\\n".encode())
out.write(wire.message(wire.Hello(protocol={protocol}, version="9.9")))
{rest}
out.flush()
sys.stdin.buffer.read()
"""
BROUGHT = """\
out.write(wire.message(wire.Brought(runs=[wire.SentRun(id={id!r}, runs="/x", condition={condition},
    files=[wire.SentFile(name={name!r}, begin={begin}, size_bytes={size}, stamp=1)])])))
for part in wire.pack([b"x" * {sent}]):
    out.write(part)
"""
USUAL = {"id": ID, "name": "spec.json", "begin": 0, "size": 5, "sent": 5, "condition": None}


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"name": "../../../../escaped"}, "was not asked for"),
        ({"name": "events/../../../escaped"}, "was not asked for"),
        ({"name": "/tmp/escaped"}, "was not asked for"),
        ({"name": "script.sh"}, "was not asked for"),
        ({"name": "spec.json", "size": 17_000_000}, "was not asked for"),
        ({"begin": 9}, "was not asked for"),
        ({"id": f"../{ID}"}, "sent a run called"),
        ({"id": ".."}, "sent a run called"),
        ({"sent": 3}, "less than it had announced"),
        ({"condition": {"state": 3}}, "cannot be read"),
    ],
)
def test_a_host_that_lies_is_refused_and_changes_nothing(laptop, tmp_path, lie, said):
    liar = tmp_path / "liar.py"
    liar.write_text(LIAR.format(protocol=1, rest=BROUGHT.format(**USUAL | lie)))
    _, err = laptop("summary", "--host", "login", ssh=f"{sys.executable} {liar}", code=3)
    assert said in err
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert "escaped" not in names
    assert names <= {"liar.py", "remote.json", ".spec.json.brought", "hosts.json"}


BOMB = """\
import zlib
run = '{{"id":"ddp-20261122-%06d-przd","runs":"","condition":%s,"files":[%s]}}'
file = '{{"name":"spec.json","begin":0,"size_bytes":16000000,"stamp":1}}'
runs = {runs}
text = b'{{"type":"brought","runs":[%s]}}' % ",".join(runs).encode()
out.write(wire.frame(wire.MESSAGE, zlib.compress(text, 9)))
"""


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ("[run % (1, '[' + '[],' * 9_000_000 + '[]]', '')]", "cannot be read"),
        ("['{}'] * 20_000_000", "too large"),
        ("[run % (number, 'null', file) for number in range(300)]", "sent too much"),
    ],
    ids=["values", "message", "runs"],
)
def test_no_message_of_a_host_takes_much_memory_or_disk(laptop, tmp_path, runs, said):
    liar = tmp_path / "liar.py"
    liar.write_text(LIAR.format(protocol=1, rest=BOMB.format(runs=runs)))
    limit = f"ulimit -v {2_000_000}; exec {sys.executable} -m hpcdist summary --host login"
    done = subprocess.run(
        ["bash", "-c", limit],
        env=os.environ | {"HPCDIST_SSH": f"{sys.executable} {liar}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert said in done.stderr
    assert not list(tmp_path.rglob("spec.json*"))


def test_a_host_that_sends_without_end_is_refused(laptop, tmp_path):
    liar = tmp_path / "liar.py"
    endless = BROUGHT.replace('[b"x" * {sent}]', 'iter(lambda: b"x" * {sent}, None)')
    liar.write_text(LIAR.format(protocol=1, rest=endless.format(**USUAL)))
    _, err = laptop("summary", "--host", "login", ssh=f"{sys.executable} {liar}", code=3)
    assert "more than it had announced" in err


@pytest.mark.parametrize("name", ["events", "attempts/00000"])
def test_nothing_is_brought_through_a_link_in_a_run_directory(laptop, tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path / "work" / "runs" / ID / name
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    record = {"host": "login", "folder": "hpcdist", "project": "work"}
    (tmp_path / "work" / "runs" / ID / "remote.json").write_text(json.dumps(record))
    file = f"{name}/begin.json" if "/" in name else f"{name}/rank-00000.jsonl"
    liar = tmp_path / "liar.py"
    liar.write_text(LIAR.format(protocol=1, rest=BROUGHT.format(**USUAL | {"name": file})))
    _, err = laptop("summary", "--host", "login", ssh=f"{sys.executable} {liar}", code=2)
    assert "is a link: nothing is downloaded to it" in err
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    "verb", [("runs",), ("summary",), ("status", ID), ("logs", ID), ("fetch", ID)]
)
def test_a_record_from_elsewhere_leads_to_no_host_that_was_never_named(laptop, tmp_path, verb):
    run = tmp_path / "work" / "runs" / ID
    run.mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"id": ID, "created_s": 1.0, "job": {}}))
    record = {"host": "strange.example", "folder": "hpcdist", "project": "work"}
    (run / "remote.json").write_text(json.dumps(record))
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    ssh.chmod(0o755)
    code = 2 if ID in verb else 0
    _, err = laptop(*verb, ssh=str(ssh), code=code)
    assert "never named" in err
    assert not (tmp_path / "called").exists()


ELSEWHERE = "clusters: {far: {scheduler: lsf, host: strange.example}}\n"


@pytest.fixture
def called(laptop, tmp_path):
    """Calls a verb, and returns its errors and whether ssh was called."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexit 255\n")
    ssh.chmod(0o755)

    def call(*verb, code):
        (tmp_path / "called").unlink(missing_ok=True)
        _, err = laptop(*verb, ssh=str(ssh), code=code)
        return err, (tmp_path / "called").exists()

    return call


@pytest.mark.parametrize(
    "verb",
    [("submit", "ddp"), ("render", "ddp"), ("explain", "ddp"), ("doctor",), ("cluster", "detect")],
    ids=" ".join,
)
def test_no_host_of_a_project_is_called_before_the_user_has_named_it(called, tmp_path, verb):
    Path("hpcdist.yaml").write_text(ELSEWHERE)
    err, was_called = called(*verb, code=2)
    assert "far.host is strange.example, which you have never named on this machine" in err
    assert "hpcdist runs --host strange.example" in err
    assert not was_called
    assert not list(tmp_path.rglob("hosts.json"))


@pytest.mark.parametrize("verb", [("runs", "--host"), ("setup",)], ids=" ".join)
def test_a_host_of_a_project_is_followed_once_it_was_named(called, verb):
    called(*verb, "strange.example", code=3)
    Path("hpcdist.yaml").write_text(ELSEWHERE)
    err, was_called = called("render", "ddp", code=3)
    assert was_called
    assert "never named" not in err


def test_a_host_of_the_users_own_file_is_followed_and_remembered(called, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = tmp_path / "hpcdist" / "hpcdist.yaml"
    own.parent.mkdir()
    own.write_text(ELSEWHERE)
    assert called("render", "ddp", code=3)[1]
    assert "strange.example" in next(tmp_path.rglob("hosts.json")).read_text()


@needs_root
@pytest.mark.parametrize("opened", ["owner", "group", "everyone"])
def test_a_host_that_others_can_have_written_is_refused_even_if_it_is_known(called, opened):
    called("runs", "--host", "strange.example", code=3)
    path = Path("hpcdist.yaml")
    path.write_text(ELSEWHERE)
    if opened == "everyone":
        path.chmod(0o666)
    else:
        os.chown(path, NOBODY if opened == "owner" else 0, NOBODY)
        path.chmod(0o644 if opened == "owner" else 0o664)
    err, was_called = called("submit", "ddp", code=2)
    assert not was_called
    assert "far.host is strange.example, and " in err
    assert "your work tree would go to a host of their choice" in err


def test_a_run_of_this_machine_is_not_replaced_by_one_of_its_name(laptop, tmp_path):
    own = tmp_path / "work" / "runs" / ID
    own.mkdir(parents=True)
    spec = json.dumps({"id": ID, "created_s": 1.0, "job": {}})
    (own / "spec.json").write_text(spec)
    liar = tmp_path / "liar.py"
    liar.write_text(LIAR.format(protocol=1, rest=BROUGHT.format(**USUAL)))
    laptop("summary", "--host", "login", "--json", ssh=f"{sys.executable} {liar}")
    assert (own / "spec.json").read_text() == spec
    assert read_remote(Run(own)) is None


PROFILES = """\
default: far
clusters:
  far: {scheduler: lsf, host: login}
  near: {scheduler: pbs}
"""


@pytest.mark.parametrize("verb", ["submit", "render"])
def test_a_sweep_over_clusters_at_several_places_is_refused(laptop, verb):
    laptop("runs", "--host", "login", ssh="false", code=3)
    Path("hpcdist.yaml").write_text(PROFILES)
    _, err = laptop(verb, "ddp", "--sweep", "cluster=far,near", ssh="false", code=2)
    assert "far is at login; near is at this machine" in err
    _, err = laptop("render", "ddp", "--sweep", "cluster=far", ssh="false", code=3)
    assert "login" in err


def test_python_refuses_a_profile_that_is_for_a_host(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("hpcdist.yaml").write_text(PROFILES)
    with pytest.raises(ProfileError, match=r"hpcdist.yaml: clusters\.far\.host is login"):
        hpcdist.submit("ddp", nodes=1, gpus=1)
    with pytest.raises(ProfileError, match=r"far\.host"):
        hpcdist.sweep("ddp", over={"nodes": [1, 2]}, cluster="far")


@pytest.mark.parametrize(
    ("config", "given"),
    [
        ("", ["ConnectTimeout=20", "ServerAliveInterval=15"]),
        ("ConnectTimeout 7\n", ["ServerAliveInterval=15"]),
        ("ConnectTimeout 7\nServerAliveInterval 5\n", []),
    ],
    ids=["none", "one", "both"],
)
def test_limits_of_the_users_own_ssh_configuration_win(laptop, missing, tmp_path, config, given):
    if not shutil.which("ssh"):
        missing("this takes ssh; `make test` installs it")
    (tmp_path / "config").write_text(f"Host login\n{config}")
    ssh = tmp_path / "ssh"
    ssh.write_text(
        f'#!/bin/sh\ncase "$*" in *-G*) exec ssh -F {tmp_path}/config "$@";; esac\n'
        f'printf "%s\\n" "$@" >{tmp_path}/given\nexit 255\n'
    )
    ssh.chmod(0o755)
    laptop("runs", "--host", "login", ssh=str(ssh), code=3, SSH_ASKPASS="")
    words = (tmp_path / "given").read_text().splitlines()
    options = [value for option, value in itertools.pairwise(words) if option == "-o"]
    assert options == ["ClearAllForwardings=yes", *given, "BatchMode=yes"]
    assert words[-3:-1] == ["--", "login"]


DETECTED = """\
out.write(wire.frame(wire.OUT, {text!r}))
out.write(wire.message(wire.Ended(code=0)))
"""


@pytest.mark.parametrize("host", ["login", "login:/work/a", r"login:/a\\1 \\g<9> #b: c"])
def test_profiles_made_at_a_host_are_for_it_alone(laptop, tmp_path, host):
    detect = ("cluster", "detect", "--host", host)
    script = tmp_path / "detects.py"
    ssh = f"{sys.executable} {script}"
    text = b"default: a\nclusters:\n  a:\n    scheduler: slurm\n    partition: a\n"
    script.write_text(LIAR.format(protocol=1, rest=DETECTED.format(text=text)))
    laptop(*detect, "--write", ssh=ssh)
    shown = json.loads(laptop("cluster", "show", "--json", ssh="false")[0])
    assert shown["profile"]["host"] == host
    for lie in (b"  b: {scheduler: local, setup: [id]}\n", b"  c: {host: other}\n", b"- {"):
        script.write_text(LIAR.format(protocol=1, rest=DETECTED.format(text=text + lie)))
        code = 2 if lie == b"- {" else 1
        assert "what login sent" in laptop(*detect, "--out", "new", ssh=ssh, code=code)[1]
    assert not Path("new").exists()


HEARS = """\
import time
from pathlib import Path
frames = wire.Frames()
while (found := frames.next()) is None:
    frames.feed(os.read(0, 1 << 16))
heard = Path("heard")
with heard.open("a") as file:
    file.write(wire.decode(found[1], wire.Request).submission + "\\n")
while len(heard.read_text().split()) < 2:
    time.sleep(0.05)
out.write(wire.message(wire.Ended(code=0)))
"""


def test_the_same_command_twice_at_once_submits_twice(laptop, tmp_path):
    said = laptop("submit", "ddp", "--host", "login", ssh="false", code=3)[1]
    assert "hint: try it by hand" in said
    script = tmp_path / "hears.py"
    script.write_text(LIAR.format(protocol=1, rest=HEARS))
    words = ("submit", "ddp", "--host", "login")
    with ThreadPoolExecutor() as threads:
        ssh = f"{sys.executable} {script}"
        calls = [threads.submit(laptop, *words, ssh=ssh, beside_others=True) for _ in range(2)]
    assert all("not submitted again" not in call.result()[1] for call in calls)
    assert len(set((tmp_path / "work" / "heard").read_text().split())) == 2


@pytest.mark.parametrize(("protocol", "who"), [(0, "the host"), (2, "this machine")])
def test_versions_that_do_not_fit_are_told_with_the_command(laptop, tmp_path, protocol, who):
    liar = tmp_path / "liar.py"
    liar.write_text(LIAR.format(protocol=protocol, rest=""))
    _, err = laptop("runs", "--host", "login", ssh=f"{sys.executable} {liar}", code=2)
    assert f"{who} has the older version" in err
    assert "hpcdist setup login" in err
