"""Telling users of the end of their runs: by which channels, and by whose word."""

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from another_user import NOBODY, needs_root
from waiting import wait_for

from hpcdist import notify
from hpcdist.cluster.channels import parse_channel
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec, UsedCluster
from hpcdist.runs.verdict import Verdict

FAILED = Verdict(
    kind="exit",
    state="failed",
    message="rank 1 left with 3, api_key=s3cret0123456789",
    exit_code_of_run=1,
)


@pytest.fixture
def service(monkeypatch):
    """A server on this machine that plays a service, and keeps what it is sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            server.received.append((self.path, json.loads(content)))
            self.send_response(403 if self.path.startswith("/refuses") else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address, server.received = f"127.0.0.1:{server.server_port}", []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_channel_gets_one_message_at_the_end_and_no_address_is_written_down(hpcdist, service):
    hpcdist.write("script.py", "pass")
    hpcdist.environment["ADDRESS"] = f"json://{service.address}/s3cret-path/"
    command = hpcdist.write("tell", '#!/bin/sh\ncat > "$1"; env | grep ^HPCDIST_NOTIFY_ >> "$1"\n')
    command.chmod(0o700)
    hpcdist.environment["REFUSES"] = f"json://{service.address}/refuses/s3cret-path"
    channels = ("apprise:env:ADDRESS", "apprise:env:REFUSES", f"command:{command} 'the end'")
    options = [word for channel in channels for word in ("--notify", channel)]
    done = hpcdist("submit", "script.py", "--local", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = hpcdist.runs
    wait_for((folder / "notify.log").exists)

    (posted,) = (sent for path, sent in service.received if path == "/s3cret-path/")
    assert posted["title"] == "script: done"
    assert posted["message"] == f"run {folder.name} done\nhpcdist summary {folder}"
    said = (hpcdist.folder / "the end").read_text()
    assert said.startswith(f"script: done\nrun {folder.name} done\n")
    assert {"HPCDIST_NOTIFY_STATE=done", f"HPCDIST_NOTIFY_RUN={folder.name}"} < {*said.split("\n")}
    (line,) = (folder / "notify.log").read_text().splitlines()
    assert " script: done: sent by apprise, not sent by apprise: exit code 1: Failed to" in line
    assert line.endswith(", sent by command")
    assert f"notify     {line[:40]}" in hpcdist("status", folder.name).stdout
    assert (folder / "notify.log").stat().st_mode & 0o077 == 0
    texts = [path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()]
    assert not [text for text in texts if b"s3cret" in text]


def test_a_run_that_seems_to_hang_is_told_of_and_its_end_too(hpcdist):
    hpcdist.write("rests.py", "import time; time.sleep(600)")
    out = hpcdist.folder / "out"
    channel = f"command:sh -c 'cat >> {out}; echo is $HPCDIST_NOTIFY_STATE >> {out}'"
    quick = ("--set", "launch.hang_notice_s=1", "--scheduler", "local", "--json")
    submitted = hpcdist("submit", "rests.py", *quick, "--notify", channel)
    run = Run(Path(json.loads(submitted.stdout)["path"]))
    wait_for(lambda: out.exists() and "is hangs\n" in out.read_text())
    assert hpcdist("cancel", run.id).returncode == 0
    wait_for(lambda: "is cancelled\n" in out.read_text())
    first, second, *others = out.read_text().splitlines()[:4]
    assert first == "rests: seems to hang"
    assert second.startswith(f"run {run.id}: rank 0 (node 0, ")
    assert others == [f"hpcdist stacks {run.path}", "is hangs"]


def test_a_channel_that_never_answers_holds_a_job_for_a_limited_time(tmp_path, monkeypatch):
    monkeypatch.setattr(notify, "LIMIT_S", 0.5)
    run = Run(tmp_path / "ddp-1")
    run.make()
    run.write_verdict(FAILED)
    out = tmp_path / "out"
    leaves = f"command:sh -c 'cat > {out}; sleep 600 & echo $! > {tmp_path}/pid'"
    begin_s = time.monotonic()
    notify.tell_end(run, "ddp", ["command:sleep 600", leaves, "command:/no/such", "mail"])
    assert time.monotonic() - begin_s < 60
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert out.read_text().splitlines()[1] == "run ddp-1 failed: rank 1 left with 3, api_key=***"
    assert notify.read_last(run).partition(" ddp: failed: ")[2] == (
        "not sent by command: no end within 0 s, sent by command, "
        "not sent by command: /no/such: No such file or directory"
    )


@pytest.mark.parametrize(
    ("channel", "problem"),
    [
        ("slack:https://hooks.slack.com/services/T/B/s3cret", "the kinds are mail, command"),
        ("apprise:https://ntfy.sh/s3cret", "apprise:env:VARIABLE"),
        ("apprise:file:address", "apprise:env:VARIABLE"),
        ("mail:ada@host,x@y", "mail:NAME@HOST"),
        ("command:./tell.sh", "a path from / or ~ on"),
    ],
)
def test_what_is_no_channel_is_refused_without_what_may_be_secret(channel, problem):
    with pytest.raises(ValueError, match="has ") as raised:
        parse_channel(channel)
    text = " ".join(raised.value.args)
    assert problem in text
    assert "s3cret" not in text


def test_a_profile_names_channels_and_a_job_may_have_none(hpcdist):
    hpcdist.write("script.py", "pass")
    hpcdist.write("hpcdist.yaml", "clusters: {c: {scheduler: lsf, notify: ['mail:ada@host.org']}}")
    assert '#BSUB -u "ada@host.org"' in hpcdist("render", "script.py").stdout
    assert "ada@" not in hpcdist("render", "script.py", "--notify", "none").stdout


@needs_root
@pytest.mark.parametrize("place", ["attempts", "ddp-1"])
def test_no_command_runs_what_others_have_put_into_the_folder_of_runs(hpcdist, place):
    """The folder is the group's, or sticky and root's: others may write it, and rename or exchange
    an own run there."""
    runs, evil = hpcdist.folder / "runs", hpcdist.folder / "evil-ran"
    runs.mkdir()
    Run(runs / ".untold").make()
    hpcdist.write("runs/.untold/ddp-1", "{}")
    theirs = Run(runs / place)
    theirs.make()
    job = {"name": "ddp", "workload": "script"}
    used = UsedCluster(profile=ClusterProfile(notify=[f"command:touch {evil}"]))
    theirs.write_spec(RunSpec(id=place, job=job, cluster=used))
    theirs.write_verdict(FAILED)
    for path in (theirs.path, *theirs.path.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    for verb in ("runs", "status", "summary"):
        hpcdist(verb)
    time.sleep(3.0)  # such a program would have been started in the background
    assert not evil.exists()
