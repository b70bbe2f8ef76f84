"""Telling users of the end of their runs: which message, by which channels, and how often."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from waiting import wait_for

from hpcdist import notify
from hpcdist.base.errors import UserError
from hpcdist.cluster.channels import parse_channel
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.runs import untold
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec, SubmittedJob, SweepPlace, SweepSpec, UsedCluster
from hpcdist.runs.sweep import Sweep
from hpcdist.runs.verdict import Verdict

LIMIT_S = 60.0
TRACKED = """
import glob, os, time
from hpcdist import record
end_s = time.monotonic() + 100
files = "runs/*/tensorboard/*"
while not any(b"speed/step_time_s" in open(path, "rb").read() for path in glob.glob(files)):
    assert time.monotonic() < end_s
    time.sleep(0.1)
    record.step(samples=1)
names = ("WANDB_RUN_ID", "WANDB_RUN_GROUP", "WANDB_RESUME")
print("wandb:", *map(os.environ.get, names))
"""
DONE = Verdict(kind="done", state="done", message="done", exit_code_of_run=0)
FAILED = Verdict(
    kind="exit", state="failed", message="rank 1 (host h) left with 3", exit_code_of_run=1
)


@pytest.fixture
def service(monkeypatch):
    """A server on this machine that plays the services; it keeps what it is sent, and never answers
    what is sent to /mute."""
    received, release = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, content.decode()))
            if self.path.startswith("/mute"):
                release.wait(LIMIT_S)
                return
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_CONNECT(self):
            received.append((self.path, ""))
            self.send_error(403)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.address = f"127.0.0.1:{server.server_port}"
    server.received = received
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    release.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def make_ended(tmp_path):
    """Make the directory of a run that has ended, whose user wants to be told of it."""

    def make(name, channels, *, verdict=DONE, sweep=None):
        run = Run(tmp_path / name)
        run.make()
        profile = ClusterProfile(notify=list(channels))
        place = sweep and SweepPlace(id=sweep, num_points=2)
        job = {"name": "ddp", "workload": "script"}
        cluster = UsedCluster(profile=profile)
        run.write_spec(RunSpec(id=name, created_s=1.7e9, job=job, cluster=cluster, sweep=place))
        if verdict is not None:
            run.write_verdict(verdict)
        if sweep is None:
            untold.expect(tmp_path, name)
        return run

    return make


def test_every_channel_gets_one_message_at_the_end_and_no_address_is_written_down(
    hpcdist, service, tmp_path
):
    hpcdist.write("script.py", TRACKED)
    address = hpcdist.write("address", f"json://{service.address}/s3cret-path/\n")
    address.chmod(0o600)
    command = hpcdist.write(
        "tell", '#!/bin/sh\ncat > "$1"; env | grep ^HPCDIST_NOTIFY_ | sort >> "$1"\n'
    )
    command.chmod(0o700)
    hpcdist.environment |= {
        "NTFY_URL": f"http://{service.address}/s3cret-topic",
        "MUTE_URL": f"json://{service.address}/mute/?rto=0.5",
        "SLACK_URL": "https://hooks.slack.com/services/T1111S3CR/B1111S3CR/s3cretxxxxs3cretxxxxs3cr",
        "HTTPS_PROXY": f"http://{service.address}",
        "NO_PROXY": "127.0.0.1",
    }
    channels = [
        "ntfy:env:NTFY_URL",
        f"apprise:file:{address}",
        "apprise:env:MUTE_URL",
        "slack:env:SLACK_URL",
        f"command:{command} 'told of it'",
    ]
    options = [word for channel in channels for word in ("--notify", channel)]
    done = hpcdist(
        "submit", "script.py", "--local", "--set", "record.track=[tensorboard]", *options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, folder = sorted((tmp_path / "runs").iterdir())
    wait_for((folder / "notify.log").exists)

    # The script ends once its steps are in the tracker; its end is there, too.
    (events,) = (folder / "tensorboard").iterdir()
    assert b"final/restarts" in events.read_bytes()
    assert "tensorboard has the run" in (folder / "logs" / "agent-00000.log").read_text()
    by_path = dict(service.received)
    (ntfy,) = [content for content in by_path.values() if "s3cret-topic" in content]
    assert f"wandb: {folder.name} {folder.name} allow\n" in done.stdout
    posted = json.loads(by_path["/s3cret-path/"])
    assert posted["title"] == "script: done"
    assert f"run {folder.name}: done in " in posted["message"]
    assert f"hpcdist summary {folder}" in json.loads(ntfy)["message"]
    assert by_path["hooks.slack.com:443"] == ""  # the proxy let nothing through
    told = (tmp_path / "told of it").read_text()
    assert told.startswith(f"script: done\nrun {folder.name}: done in ")
    assert f"HPCDIST_NOTIFY_RUN={folder.name}\nHPCDIST_NOTIFY_STATE=done\n" in told

    lines = [
        line.partition("notify: ")[2] for line in (folder / "notify.log").read_text().splitlines()
    ]
    assert sorted(line.partition(":")[0] for line in lines if line.endswith(": told")) == [
        *("apprise", "command", "ntfy")
    ]
    assert sum(line.startswith("apprise: not told: ") for line in lines) == 1
    assert sum(line.startswith("slack: not told: ") for line in lines) == 1
    # Those that know are not told again; those that do not are, by a later command.
    assert set(untold.peek(folder.parent, folder.name).told) == {
        channel for channel in channels if channel not in ("apprise:env:MUTE_URL", channels[3])
    }
    texts = [path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()]
    assert not [text for text in texts if b"s3cret" in text.lower() or b"/mute" in text]


def test_a_command_tells_of_a_run_whose_agent_was_killed_with_all_it_had(hpcdist, tmp_path):
    hpcdist.write("script.py", "import time; time.sleep(600)")
    out = tmp_path / "out"
    notify = f"command:sh -c 'cat >> {out}'"
    submitted = hpcdist("submit", "script.py", "--scheduler", "local", "--notify", notify, "--json")
    run = Run(Path(json.loads(submitted.stdout)["path"]))
    agent = wait_for(
        lambda: run.agent_file(0).exists() and json.loads(run.agent_file(0).read_text())
    )
    wait_for(lambda: run.find_log(0, 0))
    os.kill(agent["process"]["pid"], signal.SIGKILL)
    (run.path.parent / ".untold" / "~look").unlink(missing_ok=True)
    wait_for(lambda: "lost" in hpcdist("status", run.id).stdout)
    wait_for(lambda: not untold.list_untold(run.path.parent) and out.exists())
    wait_for((run.path / "notify.log").exists)
    text = out.read_text()
    assert text.startswith("script: lost\n")
    assert "its agents were killed or lost their machine" in text
    assert text.count("script: lost") == 1


def test_a_run_that_seems_to_hang_is_told_of_once_and_its_end_too(hpcdist, tmp_path):
    hpcdist.write("rests.py", "import time; time.sleep(600)")
    out = tmp_path / "out"
    channel = f"command:sh -c 'cat >> {out}; echo is $HPCDIST_NOTIFY_STATE >> {out}'"
    quick = ("--set", "launch.hang_notice_s=1", "--scheduler", "local", "--json")
    submitted = hpcdist("submit", "rests.py", *quick, "--notify", channel)
    run = Run(Path(json.loads(submitted.stdout)["path"]))
    wait_for(lambda: out.exists() and "is hangs\n" in out.read_text())
    notify_log = run.path / "notify.log"
    wait_for(lambda: notify_log.exists() and "told that it seems to hang" in notify_log.read_text())
    wait_for(lambda: untold.list_untold(run.path.parent) == [run.id])  # its end is still to be told
    notify.tell(run.path.parent, [run.id])
    assert hpcdist("cancel", run.id).returncode == 0
    wait_for(lambda: "is cancelled\n" in out.read_text())
    lines = out.read_text().splitlines()
    assert lines[0] == "rests: seems to hang"
    assert lines[1].startswith(f"run {run.id}: rank 0 (node 0, ")
    assert lines[2:4] == [f"hpcdist stacks {run.path}", "is hangs"]
    assert lines.count("is hangs") == 1


def test_one_of_many_commands_tells(make_ended, tmp_path):
    out = tmp_path / "out"
    verdict = msgspec.structs.replace(FAILED, message=f"{FAILED.message}, api_key=s3cret0123456789")
    run = make_ended("ddp-1", [f"command:sh -c 'cat >> {out}'"], verdict=verdict)
    threads = [threading.Thread(target=notify.tell, args=(tmp_path,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out.read_text().count("ddp: failed") == 1
    assert "rank 1 (host h) left with 3, api_key=***" in out.read_text()
    assert not untold.list_untold(tmp_path)
    assert (run.path / "notify.log").stat().st_mode & 0o077 == 0


def test_who_was_killed_while_telling_leaves_it_to_the_next(make_ended, tmp_path):
    out = tmp_path / "out"
    make_ended("ddp-1", [f"command:sh -c 'cat >> {out}'"])
    folder = tmp_path / ".untold"
    (folder / "ddp-1").rename(folder / "ddp-1~0123")
    notify.tell(tmp_path)
    assert not out.exists()  # somebody is at it
    os.utime(folder / "ddp-1~0123", (1.7e9, 1.7e9))
    notify.tell(tmp_path)
    assert out.read_text().count("ddp: done") == 1


def test_a_channel_that_was_told_is_not_told_again_where_the_teller_was_killed(
    make_ended, tmp_path
):
    out = tmp_path / "out"
    tells = f"command:sh -c 'cat >> {out}'"
    make_ended("ddp-1", [tells, tells, "command:sh -c 'kill -STOP $$'"])
    command = [sys.executable, "-c", "from hpcdist.notify import main; main()", tmp_path, "ddp-1"]
    folder = tmp_path / ".untold"
    with subprocess.Popen(command, start_new_session=True) as teller:
        wait_for(lambda: any(untold.peek(tmp_path, at.name).told for at in folder.glob("ddp-1~*")))
        os.killpg(teller.pid, signal.SIGKILL)
    (left,) = folder.iterdir()
    os.utime(left, (1.7e9, 1.7e9))
    assert untold.list_untold(tmp_path) == ["ddp-1"]
    assert untold.peek(tmp_path, "ddp-1").told == [tells]
    assert out.read_text().count("ddp: done") == 1


def test_a_command_that_leaves_something_in_the_background_has_told(make_ended, tmp_path):
    make_ended("ddp-1", [f"command:sh -c 'sleep 60 & echo $! > {tmp_path}/pid'"])
    notify.tell(tmp_path)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert not untold.list_untold(tmp_path)


def test_a_sweep_is_told_of_once_and_only_when_all_of_it_has_ended(make_ended, tmp_path):
    out = tmp_path / "out"
    channels = [f"command:sh -c 'cat >> {out}'"]
    Sweep(tmp_path / "s-1").path.mkdir()
    Sweep(tmp_path / "s-1").write(SweepSpec(id="s-1", num_points=2))
    untold.expect(tmp_path, "s-1")
    first = make_ended("s-1-000", channels, verdict=FAILED, sweep="s-1")
    assert untold.is_untold(first)
    notify.tell(tmp_path, ["s-1"])
    assert not out.exists()
    make_ended("s-1-001", channels, sweep="s-1")
    notify.tell(tmp_path, ["s-1"])
    notify.tell(tmp_path, ["s-1"])
    title, failed, *_ = out.read_text().splitlines()
    assert title == "sweep s-1: 1 done, 1 failed"
    assert failed == "run s-1-000 failed: rank 1 (host h) left with 3"
    assert out.read_text().count("sweep s-1") == 1
    assert not untold.is_untold(first)


def test_the_last_of_a_sweep_tells_while_another_sees_it_run(make_ended, tmp_path):
    out = tmp_path / "out"
    channels = [f"command:touch {out}"]
    Sweep(tmp_path / "s-1").path.mkdir()
    Sweep(tmp_path / "s-1").write(SweepSpec(id="s-1", num_points=2))
    untold.expect(tmp_path, "s-1")
    make_ended("s-1-000", channels, sweep="s-1")
    last = make_ended("s-1-001", channels, verdict=None, sweep="s-1")
    with untold.take(tmp_path, "s-1"):  # by the agent of the first
        last.write_verdict(DONE)
        thread = threading.Thread(target=notify.tell, args=(tmp_path, ["s-1"]))
        thread.start()
        thread.join(0.3)
    thread.join()
    assert out.exists()


def test_a_damaged_run_does_not_keep_others_from_being_told_of(make_ended, tmp_path, capfd):
    out = tmp_path / "out"
    make_ended("ddp-1", ["nothing:that is known"])
    make_ended("ddp-2", [f"command:touch {out}"])
    notify.tell(tmp_path)
    assert out.exists()
    assert "hpcdist: notify: not told: ddp-1: ValueError" in capfd.readouterr().err
    assert untold.peek(tmp_path, "ddp-1").num_tries == 1


def make_sweep(folder, **values):
    sweep = Sweep(folder / "s-1")
    sweep.path.mkdir()
    sweep.write(SweepSpec(id="s-1", num_points=3, **values))
    untold.expect(folder, "s-1")


def test_a_sweep_is_told_of_without_the_runs_that_were_deleted(make_ended, tmp_path):
    out = tmp_path / "out"
    job = SubmittedJob(name="a", job_id="7", runs=[f"s-1-00{index}" for index in range(3)])
    make_sweep(tmp_path, jobs=[job])
    run = make_ended("s-1-000", [f"command:sh -c 'cat > {out}'"], sweep="s-1")
    notify.tell(tmp_path)
    assert out.read_text().startswith("sweep s-1: 1 done\n")
    untold.expect(tmp_path, "s-1")
    shutil.rmtree(run.path)
    notify.tell(tmp_path)
    assert not untold.list_untold(tmp_path)


def test_a_sweep_on_this_machine_whose_command_was_killed_is_told_of_one_day(make_ended, tmp_path):
    out = tmp_path / "out"
    for created_s, is_told in ((time.time(), False), (1.7e9, True)):
        shutil.rmtree(tmp_path / "s-1", ignore_errors=True)
        make_sweep(tmp_path, created_s=created_s)
        if not is_told:
            make_ended("s-1-000", [f"command:touch {out}"], sweep="s-1")
        notify.tell(tmp_path)
        assert out.exists() == is_told


def test_an_agent_asks_no_scheduler_for_the_many_runs_of_a_sweep_that_go_on(
    make_ended, tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr(notify, "run_conditions", lambda runs: asked.append(len(runs)) or {})
    Sweep(tmp_path / "s-1").path.mkdir()
    Sweep(tmp_path / "s-1").write(SweepSpec(id="s-1", num_points=6))
    untold.expect(tmp_path, "s-1")
    for index in range(6):
        verdict = None if index else DONE
        make_ended(f"s-1-00{index}", [], verdict=verdict, sweep="s-1")
    notify.tell(tmp_path, ["s-1"])
    assert not asked
    assert untold.list_untold(tmp_path) == ["s-1"]


def test_a_torn_file_of_a_sweep_is_logged_and_no_message_is_made_up(make_ended, tmp_path):
    out = tmp_path / "out"
    make_sweep(tmp_path)
    make_ended("s-1-000", [f"command:touch {out}"], sweep="s-1")
    (tmp_path / "s-1" / "sweep.json").write_text('{"id": ')
    notify.tell(tmp_path)
    assert not out.exists()
    assert "sweep.json is damaged" in (tmp_path / "s-1" / "notify.log").read_text()
    assert untold.peek(tmp_path, "s-1").num_tries == 1


def test_a_copied_folder_of_runs_tells_nothing_again(make_ended, tmp_path):
    out = tmp_path / "out"
    run = make_ended("ddp-1", [f"command:touch {out}"])
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy / run.id)
    shutil.copytree(tmp_path / ".untold", copy / ".untold")
    notify.tell(copy)
    assert not untold.list_untold(copy)
    assert not out.exists()
    assert untold.list_untold(tmp_path)


def test_what_cannot_be_written_down_starts_no_process_at_each_command(
    make_ended, tmp_path, monkeypatch
):
    make_ended("ddp-1", ["command:true"])
    monkeypatch.setattr(os, "access", lambda *_: False)  # as on a file system that is read-only
    assert not untold.list_untold(tmp_path)


@pytest.mark.timeout(30)
def test_a_sweep_of_more_points_than_there_can_be_takes_no_memory(tmp_path):
    Sweep(tmp_path / "s-1").path.mkdir()
    Sweep(tmp_path / "s-1").write(SweepSpec(id="s-1", num_points=10**12))
    for is_over in (False, True):
        untold.expect(tmp_path, "s-1")
        if is_over:
            untold.note_over(tmp_path, "s-1")
        notify.tell(tmp_path, ["s-1"])
    assert not untold.list_untold(tmp_path)


def test_a_channel_that_fails_is_tried_later_and_not_for_ever(make_ended, tmp_path, monkeypatch):
    run = make_ended("ddp-1", ["command:false"])
    notify.tell(tmp_path, [run.id])  # by the agent: the next command may try at once
    assert untold.peek(tmp_path, run.id).not_before_s == 0.0
    for _ in range(3):
        notify.tell(tmp_path)  # by commands, of which one tries
    assert untold.peek(tmp_path, run.id).num_tries == 2
    assert untold.peek(tmp_path, run.id).not_before_s > time.time() + 60
    now_s = time.time()
    for number in range(20):
        monkeypatch.setattr(notify.time, "time", lambda number=number: now_s + 7200 * number)
        notify.tell(tmp_path)
    assert not untold.list_untold(tmp_path)
    assert "given up after 8 tries" in (run.path / "notify.log").read_text()
    assert (run.path / "notify.log").read_text().count("exit code 1") == 8


def test_nothing_is_told_in_a_folder_that_others_may_write(make_ended, tmp_path):
    out = tmp_path / "out"
    make_ended("ddp-1", [f"command:touch {out}"])
    (tmp_path / ".untold").chmod(0o770)
    notify.tell(tmp_path)
    notify.tell(tmp_path, ["ddp-1"])
    assert not out.exists()


@pytest.mark.parametrize(
    ("channel", "problem"),
    [
        ("sleck:env:X", "did you mean slack"),
        ("slack:https://hooks.slack.com/services/T/B/s3cret", "slack:env:VARIABLE"),
        ("https://ntfy.sh/s3cret", "they are mail, command"),
        ("ntfy:file:address", "begin it with / or ~"),
        ("mail:ada@host,x@y", "which is no address"),
        ("command:", "without a program"),
        ("command:./tell.sh", "begin it with / or ~"),
        ("command:sh -c 'x", "close the quotes"),
    ],
)
def test_what_is_no_channel_is_refused_without_what_may_be_secret(channel, problem):
    with pytest.raises(ValueError, match="has ") as raised:
        parse_channel(channel)
    text = " ".join(raised.value.args)
    assert problem in text
    assert "s3cret" not in text


def test_an_address_is_read_from_a_private_file_or_a_variable(tmp_path, monkeypatch):
    file = tmp_path / "address"
    file.write_text("https://host/s3cret\n")
    file.chmod(0o644)
    channel = parse_channel(f"slack:file:{file}")
    with pytest.raises(UserError, match="cannot be used") as raised:
        channel.address()
    assert "chmod 600" in raised.value.hint
    file.chmod(0o600)
    assert channel.address() == "https://host/s3cret"
    monkeypatch.delenv("NO_SUCH_URL", raising=False)
    with pytest.raises(UserError, match="the variable NO_SUCH_URL is not set"):
        parse_channel("slack:env:NO_SUCH_URL").address()


def test_profiles_name_channels_which_render_shows_as_mail_and_mistakes_end_at_once(hpcdist):
    hpcdist.write("script.py", "pass")
    profile = "clusters: {c: {scheduler: %s, notify: [mail: ada@host.org]%s}}"
    lines = {
        "slurm": ["#SBATCH --mail-type=END,FAIL", "#SBATCH --mail-user=ada@host.org"],
        "pbs": ["#PBS -m ae", "#PBS -M ada@host.org"],
        "lsf": ["#BSUB -N", '#BSUB -u "ada@host.org"'],
    }
    for scheduler, expected in lines.items():
        more = ", lsf: {options: [-J, -n, -R, -gpu, -o, -r, -N, -u]}" if scheduler == "lsf" else ""
        hpcdist.write("hpcdist.yaml", profile % (scheduler, more))
        rendered = hpcdist("render", "script.py")
        assert rendered.returncode == 0, rendered.stderr
        assert set(expected) <= set(rendered.stdout.splitlines())
        silent = hpcdist("render", "script.py", "--notify", "none")
        assert not set(expected) & set(silent.stdout.splitlines())
    hpcdist.write("hpcdist.yaml", profile % ("lsf", ""))
    refused = hpcdist("render", "script.py")
    assert refused.returncode == 2
    assert "add -N to lsf.options" in refused.stderr
    refused = hpcdist("submit", "script.py", "--local", "--notify", "slack:env:NO_SUCH_URL")
    assert refused.returncode == 2
    assert "NO_SUCH_URL is not set" in refused.stderr
    assert not (hpcdist.folder / "runs").exists()


def test_a_resume_that_is_refused_tells_nobody_of_the_old_end_again(hpcdist):
    hpcdist.write("script.py", "pass")
    answers = {
        "sbatch": '[ -e refused ] && { echo "sbatch: error: invalid account" >&2; exit 1; }\n'
        "echo 'Submitted batch job 7'",
        "squeue": "exit 0",
        "sacct": "echo '7|FAILED|None|'$(ls runs)",
    }
    for name, text in answers.items():
        hpcdist.write(f"bin/{name}", f"#!/bin/bash\n{text}\n").chmod(0o755)
    hpcdist.environment["PATH"] = f"{hpcdist.folder}/bin:{os.environ['PATH']}"
    options = ("--scheduler", "slurm", "--notify", "command:true", "--json")
    submitted = hpcdist("submit", "script.py", *options)
    assert submitted.returncode == 0, submitted.stderr
    run = Run(Path(json.loads(submitted.stdout)["path"]))
    run.write_verdict(FAILED)
    notify.tell(run.path.parent)
    assert not untold.list_untold(run.path.parent)
    hpcdist.write("refused", "")
    resumed = hpcdist("resume", run.id)
    assert "invalid account" in resumed.stderr
    assert run.read_verdict() == FAILED
    assert not untold.list_untold(run.path.parent)
