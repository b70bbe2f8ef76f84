"""`--host`: a verb that runs at a login node, from a laptop, over ssh.

A verb goes where `--host` says; a job else where the `host` of its profile is, and what is about
runs where they were submitted to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base.errors import ProfileError, RunNotFoundError, UserError
from hpcdist.base.version import is_served
from hpcdist.cli.options import HOST, named_runs, write_in_groups
from hpcdist.cli.printing import note
from hpcdist.runs.run import runs_folder, slug

if TYPE_CHECKING:
    from hpcdist.cluster.profile import Host
    from hpcdist.remote.ssh import Connection, Where
    from hpcdist.runs.snapshot import SnapshotPlan

_HERE_ONLY = ("local", "here")
"""Options of jobs that run on this machine."""
_READ_HERE = ("summary", "runs", "diff")
"""Verbs that show runs at hosts by what is brought here of them."""


class HostCommand(click.Command):
    """A verb that may run at a host."""

    def invoke(self, ctx: click.Context) -> Any:
        if is_served():
            return super().invoke(ctx)
        if "cluster" in ctx.params or "scheduler" in ctx.params:
            host = _host_of_job(ctx)
            return super().invoke(ctx) if host is None else _run_job(ctx, host)
        if (text := ctx.meta.get(HOST)) is not None:
            there = _where(_parsed(text), ctx)
            if _verb(ctx) != "summary":
                return _run_at(ctx, there, _typed(ctx)[0])
            from hpcdist.remote.bring import bring
            from hpcdist.remote.ssh import Connection

            with Connection(there.host) as connection:
                bring(connection, there, ctx.params["runs"], with_events=True)
            return super().invoke(ctx)
        given = [ctx.params.get(key) or () for key in ("run_name", "run_names", "first", "second")]
        names = list(chain.from_iterable([one] if isinstance(one, str) else one for one in given))
        where, ids = _place(ctx, names)
        if where is None:
            return super().invoke(ctx)
        args = [word for word in _typed(ctx)[0] if word not in names]
        return _run_at(ctx, where, [*args, *ids])


class JobCommand(HostCommand):
    """A verb that is about a job, whose help has its many options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_in_groups(ctx, self, formatter)


def _place(ctx: click.Context, names: Sequence[str]) -> tuple[Where | None, list[str]]:
    """Return where a verb goes, None being here, and the ids of its runs there; what is shown here
    of runs at hosts is brought."""
    from hpcdist.runs.remote import FILE, forget_ends
    from hpcdist.runs.run import find_runs

    verb, runs = _verb(ctx), ctx.params.get("runs")
    if runs is None or not any(runs.glob(f"*/{FILE}")):
        return None, []
    from hpcdist.remote.bring import by_place, refresh

    try:
        if verb in _READ_HERE or not names:
            with_events = verb in ("summary", "diff")
            refresh(named_runs(runs, names), with_events=with_events, note=note)
            return None, []
        found = [find_runs(runs, name) for name in names]
    except RunNotFoundError:  # the verb itself says what is wrong with a name
        return None, []
    everything = list(chain.from_iterable(found))
    where, *others = by_place(everything)
    if others:
        raise click.UsageError("these runs are at several places: name the runs of one place")
    if where is not None and verb == "resume":
        forget_ends(everything)
    sweeps = [part[0].spec.sweep if len(part) > 1 else None for part in found]
    pairs = zip(found, sweeps, strict=True)
    return where, [part[0].id if sweep is None else str(sweep.id) for part, sweep in pairs]


def _run_at(ctx: click.Context, where: Where, args: list[str]) -> int:
    from hpcdist.remote.command import Verb

    return Verb(where=where, argv=[*_verb(ctx).split(), *args]).run()


# Jobs.


def _host_of_job(ctx: click.Context) -> Host | None:
    """Return the host that a job is for; None for this machine, or one that is the host itself.

    Raises ProfileError for a host that others may have chosen.
    """
    params = ctx.params
    given = [f"--{name}" for name in _HERE_ONLY if params.get(name)]
    given += ["--scheduler local"] if params.get("scheduler") == "local" else []
    if (text := ctx.meta.get(HOST)) is not None:
        if given:
            raise click.UsageError(
                f"--host and {given[0]} contradict each other: --host submits to the scheduler of "
                "that host, and runs nothing on its login node"
            )
        return _parsed(text)
    if given:
        return None
    text = _host_of_cluster(params.get("cluster"))
    return None if text is None else _parsed(text, "host")


def _host_of_cluster(name: str | None) -> str | None:
    """Return the host that jobs of a profile are submitted from; None: this machine."""
    from hpcdist.cluster.load import load_profile, require_trusted_host
    from hpcdist.cluster.profile import parse_host
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
    from hpcdist.cluster.profile import parse_host
    from hpcdist.runs.remote import remember_host

    host = parse_host(text, origin=origin)
    remember_host(host.name)
    return host


def _run_job(ctx: click.Context, host: Host) -> int:
    """Run a verb that is about a job at its host, with the work tree and the profiles."""
    from hpcdist.cluster.load import all_profiles, load_profile
    from hpcdist.remote.bring import bring
    from hpcdist.remote.command import Verb, submit_at

    default, clusters = all_profiles()
    profiles = None
    if clusters and ctx.params["cluster"] in (None, *clusters):
        if (name := ctx.params["cluster"] or default) is not None:
            load_profile(name)  # its mistakes are told by the names of the files here
        profiles = json.dumps({"default": default, "clusters": clusters})  # JSON is YAML
    args, job = _typed(ctx)[0], ctx.params.get("job_name")
    tree = _work_tree(ctx, job) if job else None
    if job and tree is not None and os.path.isabs(job) and os.path.exists(job):
        args[args.index(job)] = os.path.relpath(os.path.realpath(job), tree.cwd)
    where = _where(host, ctx)
    verb = Verb(where=where, argv=[*_verb(ctx).split(), *args], tree=tree, profiles=profiles)
    if _verb(ctx) not in ("submit", "dev"):
        return verb.run()

    def record(connection: Connection, out: str) -> None:
        """Make records of the runs that were submitted, by which their names are known here."""
        said = json.loads(out) if out.startswith("{") else {"run": out.partition("\n")[0]}
        if wanted := {str(said[key]) for key in ("run", "sweep") if said.get(key)}:
            bring(connection, where, runs_folder(), wanted, with_events=False)

    return submit_at(verb, note, record)


def _work_tree(ctx: click.Context, job: str) -> SnapshotPlan | None:
    """Return the work tree that goes along; None where there is none, or is not to be taken."""
    from hpcdist.runs.snapshot import NoWorkTreeError, plan_snapshot

    wanted = ctx.params["snapshot"]
    if wanted is False:
        return None
    try:
        plan = plan_snapshot(Path.cwd(), runs=runs_folder())
    except NoWorkTreeError as error:
        if wanted or os.path.exists(job):
            raise UserError(
                f"{job} cannot be sent: {error.message}",
                hint="only files of a git work tree are sent: make one with git init, or use "
                "--no-snapshot and name a file on the host",
            ) from None
        return None
    if os.path.isfile(job) and plan.path_in(Path(plan.root), job) is None:
        raise UserError(
            f"{job} is not among the files that are sent, those of the git work tree {plan.root}",
            hint="put it into the work tree, where git does not ignore it",
        )
    note(*plan.notes)
    return plan


# Places and words.


def _where(host: Host, ctx: click.Context) -> Where:
    """Return the place at the host of the project of the current directory."""
    from hpcdist.remote.ssh import Where
    from hpcdist.runs.snapshot import NoWorkTreeError, find_work_tree

    root = os.getcwd()
    with suppress(NoWorkTreeError):
        root = find_work_tree(root)
    return Where(host, slug(os.path.basename(root)), _typed(ctx)[1])


def _verb(ctx: click.Context) -> str:
    return ctx.command_path.partition(" ")[2]


def _typed(ctx: click.Context) -> tuple[list[str], str | None]:
    """Return the words behind the verb without --host and --runs, and what --runs says."""
    kept: list[str] = []
    runs = None
    words = iter(ctx.obj[len(_verb(ctx).split()) :])
    for word in words:
        option, equals, value = word.partition("=")
        if word == "--":
            kept += [word, *words]
        elif option in ("--host", "--runs"):
            value = value if equals else next(words, "")
            runs = value if option == "--runs" else runs
        else:
            kept.append(word)
    return kept, runs
