"""`--host`: a verb that runs at a login node, from a laptop, over ssh.

A verb goes where `--host` says; a job else where the `host` of its profile is, and what is about
runs where they were submitted to.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base import served
from hpcdist.base.errors import HpcdistError, JobError, ProfileError, UserError
from hpcdist.cli.options import HOST, named_runs
from hpcdist.cli.printing import note
from hpcdist.runs.run import Run, all_runs, runs_folder, slug

if TYPE_CHECKING:
    from hpcdist.cluster.host import Host
    from hpcdist.remote.ssh import Where
    from hpcdist.runs.snapshot import SnapshotPlan

_ARGS = "hpcdist.args"
_HERE_ONLY = ("local", "here")
"""Options of jobs that run on this machine."""


class HostCommand(click.Command):
    """A verb that may run at a host."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        given = list(args)
        ctx = super().make_context(info_name, args, parent, **extra)
        ctx.meta[_ARGS] = given
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        if served.is_served():
            return super().invoke(ctx)
        here = super().invoke
        if "cluster" in ctx.params or "scheduler" in ctx.params:
            host = _host_of_job(ctx)
            return here(ctx) if host is None else _run_job(ctx, host)
        if (text := ctx.meta.get(HOST)) is not None:
            return _run_at(ctx, _where(_parsed(text), _runs_text(ctx)), _argv(ctx))
        return _run_where_runs_are(ctx, here)


# Jobs.


def _host_of_job(ctx: click.Context) -> Host | None:
    """Return the host that a job is for; None for this machine, or one that is the host itself."""
    given = [f"--{name}" for name in _HERE_ONLY if ctx.params.get(name)]
    given += ["--scheduler local"] if ctx.params.get("scheduler") == "local" else []
    if (text := ctx.meta.get(HOST)) is not None:
        if given:
            raise click.UsageError(
                f"--host and {given[0]} contradict each other: --host submits to the scheduler of "
                "that host, and runs nothing on its login node"
            )
        return _parsed(text)
    if given:
        return None
    hosts = {name: _host_of_cluster(name) for name in _clusters(ctx)}
    texts = {text or "this machine": name for name, text in hosts.items()}
    if len(texts) > 1:
        places = "; ".join(f"{name} is at {text}" for text, name in texts.items())
        raise click.UsageError(
            "--sweep cluster: its runs are for several places; submit to each of them "
            f"separately: {places}"
        )
    text = next(iter(hosts.values()))
    return None if text is None else _parsed(text, "host")


def _clusters(ctx: click.Context) -> list[str | None]:
    """Return the profiles that a job, or the points of its sweep, go by; None: the usual one."""
    from hpcdist.submission.points import CLUSTER, parse_sweeps

    with suppress(JobError):  # it is told later
        axes = parse_sweeps(ctx.params.get("sweeps") or ())
        for axis in chain.from_iterable(axis.keys for axis in axes):
            if axis.key == CLUSTER:
                return [str(flag.text or flag.value) for flag in axis.flags]
    return [ctx.params.get("cluster")]


def _host_of_cluster(name: str | None) -> str | None:
    """Return the host that jobs of a profile are submitted from; None: this machine. Raises
    ProfileError for one that others may have chosen."""
    from hpcdist.cluster.host import parse_host
    from hpcdist.cluster.load import load_profile, require_trusted_host
    from hpcdist.runs.remote import known_hosts
    from hpcdist.schedulers import host_of

    try:
        loaded = load_profile(name)
    except ProfileError:  # it is told later, after mistakes in the job
        return None
    if (text := host_of(loaded.profile)) is not None:
        is_named = parse_host(text, origin="host").name in known_hosts()
        require_trusted_host(loaded, is_named=is_named)
    return text


def _parsed(text: str, origin: str = "--host") -> Host:
    """Return a host that the user has named, here or in a file of their own, and remember it."""
    from hpcdist.cluster.host import parse_host
    from hpcdist.runs.remote import remember_host

    host = parse_host(text, origin=origin)
    remember_host(host.name)
    return host


def _run_job(ctx: click.Context, host: Host) -> int:
    tree = _work_tree(ctx) if "job_name" in ctx.params else None
    where = _where(host, _runs_text(ctx))
    from hpcdist.cli.remote_submit import call_at, submit_there
    from hpcdist.remote.bring import request_to

    request = request_to(
        where, argv=_argv_of_job(ctx, tree), profiles=_profiles(ctx.params["cluster"])
    )
    if _verb(ctx) == ["submit"]:
        return submit_there(request, where, tree, wait=ctx.params["wait"])
    return call_at(where, request, tree=tree)


def _work_tree(ctx: click.Context) -> SnapshotPlan | None:
    """Return the work tree that goes along; None where there is none, or is not to be taken."""
    from hpcdist.runs.snapshot import NoWorkTreeError, plan_snapshot
    from hpcdist.submission.workspace import limit_bytes_of

    wanted, job = ctx.params["snapshot"], ctx.params["job_name"]
    if wanted is False:
        return None
    limit_bytes = limit_bytes_of(ctx.params["snapshot_limit"])
    try:
        plan = plan_snapshot(Path.cwd(), runs=runs_folder(), limit_bytes=limit_bytes)
    except NoWorkTreeError as error:
        if wanted or os.path.exists(job):
            raise UserError(
                f"{job} cannot be sent: {error.message}",
                hint=(
                    "only files of a git work tree are sent: make one with git init, or use "
                    "--no-snapshot and name a file on the host"
                ),
            ) from None
        return None
    if os.path.isfile(job) and plan.path_in(Path(plan.root), job) is None:
        raise UserError(
            (f"{job} is not among the files that are sent, those of the git work tree {plan.root}"),
            hint="put it into the work tree, where git does not ignore it",
        )
    note(*plan.notes)
    return plan


def _argv_of_job(ctx: click.Context, tree: SnapshotPlan | None) -> list[str]:
    """Return the words of the verb, with the path of a file of the work tree as it is there."""
    argv, job = _argv(ctx), ctx.params.get("job_name", "")
    if tree is not None and os.path.isabs(job) and os.path.exists(job):
        argv[argv.index(job)] = os.path.relpath(os.path.realpath(job), tree.cwd)
    return argv


def _profiles(cluster: str | None) -> str | None:
    """Return the profiles of this machine, which count there; None where there are none."""
    from hpcdist.base import files
    from hpcdist.cluster.load import all_profiles, load_profile

    default, clusters = all_profiles()
    if not clusters or (cluster is not None and cluster not in clusters):
        return None
    if (name := cluster or default) is not None:
        load_profile(name)  # its mistakes are told by the names of the files here
    return files.to_json({"default": default, "clusters": clusters})  # JSON is YAML


def detect_there(ctx: click.Context) -> str | None:
    """Return the profiles that `cluster detect` makes at a host, with its name in them; None where
    it is to be done here."""
    from hpcdist.cli.remote_submit import call_at
    from hpcdist.remote.bring import request_to
    from hpcdist.remote.call import Output

    host = None if served.is_served() else _host_of_job(ctx)
    if host is None:
        return None
    argv = [
        *_verb(ctx),
        *(
            f"--{name}={value}"
            for name, value in ctx.params.items()
            if name in ("name", "scheduler") and value
        ),
    ]
    where = _where(host, None)
    output = Output(captured=True)
    if code := call_at(where, request_to(where, argv=argv), output):
        ctx.exit(code)
    assert output.captured is not None
    return _with_host(output.captured.decode(errors="replace"), host)


def _with_host(text: str, host: Host) -> str:
    """Return profiles that were made at a host, each with its name; HpcdistError where one would
    be for another place: it says what is run there."""
    from hpcdist.job.yaml_text import parse_keys

    named = str(host) if re.fullmatch(r"[\w@%+~:./-]+", str(host)) else json.dumps(str(host))
    text = re.sub(
        r"^( +)scheduler:.*$",
        lambda found: f"{found[0]}\n{found[1]}host: {named}",
        text,
        flags=re.MULTILINE,
    )
    values = parse_keys(text.encode(), f"what {host.name} sent", hint="look at it there") or {}
    clusters = values.get("clusters") or {}
    profiles = clusters.values() if isinstance(clusters, dict) else [None]
    if not all(isinstance(one, dict) and one.get("host") == str(host) for one in profiles):
        raise HpcdistError(
            f"what {host.name} sent has a profile that is not for it",
            hint="run hpcdist cluster detect there, and look at what it prints",
        )
    return text


# Runs.


def _run_where_runs_are(ctx: click.Context, here: Callable[[click.Context], Any]) -> Any:
    """Run a verb on the runs of this machine here, and on others at their hosts."""
    from hpcdist.runs.remote import FILE, forget_ends, is_remote
    from hpcdist.runs.sweep import find_runs

    verb, runs = _verb(ctx), ctx.params["runs"]
    if not any(runs.glob(f"*/{FILE}")):
        return here(ctx)
    from hpcdist.remote.bring import by_place, refresh

    key = "run_names" if "run_names" in ctx.params else "run_name"
    names = _given_names(ctx, key)
    if verb in (["summary"], ["runs"], ["diff"]):
        refresh(_named(runs, names), with_events=verb != ["runs"], note=note)
        return here(ctx)
    if not names:
        return _run_on_all(ctx, here)
    found: dict[str, list[Run]] = {}
    with suppress(HpcdistError):  # the verb itself says what is wrong with a name
        found = {name: find_runs(runs, name) for name in names}
    if not any(is_remote(run) for theirs in found.values() for run in theirs):
        return here(ctx)
    groups: dict[Where | None, list[str]] = {}
    for theirs in found.values():
        for where, part in by_place(theirs).items():
            sweep = part[0].read_sweep_place() if len(part) > 1 else None
            whole = sweep is not None and sweep.id and len(part) == len(theirs)
            ids = [str(sweep.id)] if sweep and whole else [run.id for run in part]
            groups.setdefault(where, []).extend(ids)
    if len(groups) > 1 and ctx.params.get("as_json"):
        raise click.UsageError(
            "these runs are at several places: with --json, name the runs of one place"
        )
    forget_ends(chain.from_iterable(found.values() if verb == ["resume"] else ()))
    codes = []
    for where, ids in groups.items():
        if where is None:
            ctx.params[key] = tuple(ids)
            codes.append(here(ctx) or 0)
        else:
            codes.append(_run_at(ctx, where, _argv(ctx, names, ids)))
    return max(codes)


def _run_on_all(ctx: click.Context, here: Callable[[click.Context], Any]) -> Any:
    """Run a verb without names: on the runs here, and on those that go on at hosts."""
    from hpcdist.remote.bring import by_place
    from hpcdist.runs.remote import is_remote

    runs = all_runs(ctx.params["runs"])
    going_on = [run for run in runs if is_remote(run) and run.read_verdict() is None]
    verb = _verb(ctx)
    if verb not in (["status"], ["watch"]) or not any(map(is_remote, runs)):
        return here(ctx)
    if not going_on and is_remote(runs[-1]):
        going_on = [runs[-1]]
    groups = by_place(going_on)
    has_own = not all(map(is_remote, runs))
    if verb == ["watch"] and len(groups) + has_own > 1:
        note(f"{len(going_on)} runs are at hosts: name them to watch them")
        return here(ctx)
    if ctx.params.get("as_json") and len(groups) + has_own > 1:
        raise click.UsageError(
            "runs are at several places: with --json, name the runs of one place"
        )
    codes = [here(ctx) or 0] if has_own else []
    for where, theirs in groups.items():
        assert where is not None
        codes.append(_run_at(ctx, where, [*_argv(ctx), *(run.id for run in theirs)]))
    return max(codes, default=0)


def _given_names(ctx: click.Context, key: str) -> Sequence[str]:
    """Return the names of runs that a verb was given, in one parameter or, diff's, in two."""
    if "first" in ctx.params:
        return ctx.params["first"], ctx.params["second"]
    given = ctx.params.get(key) or ()
    return (given,) if isinstance(given, str) else given


def _named(runs: Path, names: Sequence[str]) -> list[Run]:
    try:
        return named_runs(runs, names)
    except HpcdistError:  # a name may be a folder's; the verb says what is wrong
        return []


def _run_at(ctx: click.Context, where: Where, argv: list[str]) -> int:
    """Run a verb on runs at a host."""
    from hpcdist.cli.remote_submit import call_at
    from hpcdist.remote.bring import request_to

    verb = _verb(ctx)
    if verb == ["summary"]:
        return _summarize(ctx, where)
    goes_on = verb == ["watch"] or (verb == ["logs"] and ctx.params["follow"])
    return call_at(where, request_to(where, argv=argv), again=goes_on)


def _summarize(ctx: click.Context, where: Where) -> int:
    """Bring all runs of the project, and summarize them with those that are here."""
    from hpcdist.remote.bring import bring_all

    bring_all(where, ctx.params["runs"], note=note)
    assert ctx.command.callback is not None
    code: int | None = ctx.command.callback(**ctx.params)
    return code or 0


# Places and words.


def _where(host: Host, runs: str | None) -> Where:
    """Return the place at the host of the project of the current directory."""
    from hpcdist.remote.ssh import Where
    from hpcdist.runs.snapshot import NoWorkTreeError, find_work_tree

    here = os.getcwd()
    try:
        root = find_work_tree(here)
    except NoWorkTreeError:
        root = here
    return Where(host, slug(os.path.basename(root)), runs)


def _verb(ctx: click.Context) -> list[str]:
    return ctx.command_path.split()[1:]


def _argv(ctx: click.Context, names: Sequence[str] = (), ids: Sequence[str] = ()) -> list[str]:
    """Return the verb and its arguments as they were typed, but for what is about places; `ids`
    stand in the place of the names."""
    args, _ = _without(ctx.meta[_ARGS])
    if names:
        args = [word for word in args if word not in names] + list(ids)
    return [*_verb(ctx), *args]


def _runs_text(ctx: click.Context) -> str | None:
    return _without(ctx.meta[_ARGS])[1]


def _without(args: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the words without --host and --runs, and what --runs says."""
    kept: list[str] = []
    values: dict[str, str] = {}
    words = iter(args)
    for word in words:
        option, equals, value = word.partition("=")
        if word == "--":
            kept += [word, *words]
        elif option in ("--host", "--runs"):
            values[option] = value if equals else next(words, "")
        else:
            kept.append(word)
    return kept, values.get("--runs")
