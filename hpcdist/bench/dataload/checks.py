"""What a job dataload compares, and what is wrong with it; known where it is submitted."""

from __future__ import annotations

from hpcdist.base.errors import JobError
from hpcdist.bench.dataload.combinations import Combination, combine, several
from hpcdist.bench.dataload.figures import Setting
from hpcdist.data.catalog import check_data, find_data_set
from hpcdist.data.images.device_transforms import check_device_transform
from hpcdist.job.check import check_each_once, show
from hpcdist.job.spec import Data, DataloadJob
from hpcdist.training.model.checks import check_model_name

_COMPARED = tuple(Setting.__struct_fields__)
_MOST_COMBINATIONS = 1_000
"""More is taken for a mistake: that many take hours."""


def check_dataload(job: DataloadJob) -> None:
    """Raise JobError for all that can be known to be wrong without importing torch."""
    if job.model.name is not None:
        check_model_name(job.model.name)
        if job.dataload.step_time_s is not None:
            raise JobError(
                f"model.name is {job.model.name} and dataload.step_time_s is "
                f"{job.dataload.step_time_s:g}: loading is compared with one of them",
                hint="leave one of them out",
            )
    for key in _COMPARED:
        _check_list(job, key)
    combinations = combine_job(job)
    if len(combinations) > _MOST_COMBINATIONS:
        raise JobError(
            f"the lists in data make {len(combinations):,} combinations, more than "
            f"{_MOST_COMBINATIONS:,}",
            hint="shorten the lists, or submit some of them as a job of their own",
        )
    for data in {combination.data.root: combination.data for combination in combinations}.values():
        check_data(data)
    _check_transforms(job)
    for combination in combinations:
        check_device_transform(combination.data)


def _check_list(job: DataloadJob, key: str) -> None:
    values = several(job.data, key)
    if not values:
        raise JobError(f"data.{key} is empty", hint="list at least one value, or leave it out")
    often = "data.repeats says how often it is timed"
    check_each_once(f"data.{key}", values, hint=often, show=show)


def _check_transforms(job: DataloadJob) -> None:
    from hpcdist.data.images.transforms import check_transform

    for transform in several(job.data, "transform"):
        check_transform(transform)


def combine_job(job: DataloadJob) -> list[Combination]:
    """The ways of loading that the job measures."""
    return combine(job.data, in_memory=find_data_set(any_data(job)).images is None)


def any_data(job: DataloadJob) -> Data:
    """What all ways of loading have in common: the data set's name."""
    return Data(name=job.data.name)
