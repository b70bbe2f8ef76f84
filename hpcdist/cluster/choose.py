"""Which scheduler and which profile a submission goes by, from what its user asked for."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdist.base.errors import ProfileError
from hpcdist.cluster.load import NO_PROFILE, LoadedProfile, load_profile
from hpcdist.job import Flag


def choose_cluster(
    scheduler: str | None, cluster: str | None, flags: Mapping[str, Flag]
) -> tuple[str, LoadedProfile]:
    """The scheduler by name, or `auto`, and the profile.

    A run on this machine that was asked for by name goes by no profile: what hpcdist.yaml says is
    about clusters, and this machine may be the laptop on which the project is written.

    Raises ProfileError where the profile is wrong, or is for another scheduler.
    """
    if scheduler == "local":
        _refuse_on_this_machine(cluster, flags)
        return scheduler, NO_PROFILE
    loaded = load_profile(cluster, flags=flags)
    wanted = loaded.profile.scheduler
    if scheduler in {None, "auto", wanted}:
        return wanted, loaded
    if wanted == "auto":
        return scheduler or wanted, loaded
    raise ProfileError(
        f"{loaded.origins['scheduler']}: cluster {loaded.name} is for {wanted}, not {scheduler}",
        hint=f"leave the scheduler {scheduler} away, or choose another cluster with --cluster",
    )


def _refuse_on_this_machine(cluster: str | None, flags: Mapping[str, Flag]) -> None:
    given = [f"--cluster {cluster}"] if cluster is not None else []
    given += [f"{flag.name} {flag.value}" for flag in flags.values()]
    if given:
        raise ProfileError(
            f"{given[0]} is about a cluster, and the run is to be on this machine",
            hint="leave one of the two away",
        )
