"""What no benchmark can measure is refused before it starts, with key, value and what to do."""

import msgspec
import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.load import load_job
from hpcdist.job.spec import AllreduceJob, DataloadJob, InferenceJob
from hpcdist.workloads import load_workload

REFUSED = [
    (AllreduceJob, {"allreduce": {"sizes": []}}, "allreduce.sizes is empty"),
    (AllreduceJob, {"allreduce": {"sizes": [8, 4, 8]}}, "allreduce.sizes has 8 2 times"),
    (AllreduceJob, {"allreduce": {"sizes": [1024, 1022]}}, "1,022, which is no multiple of the 4 "),
    (DataloadJob, {"data": {"workers": []}}, "data.workers is empty"),
    (DataloadJob, {"data": {"batch_size": [8, 1, 8]}}, "data.batch_size has 8 2 times"),
    (DataloadJob, {"data": {"transform": ["none"] * 2}}, 'data.transform has "none" 2 times'),
    (DataloadJob, {"data": {"name": "face"}}, "data.name is 'face'"),
    (DataloadJob, {"data": {"name": "image_folder"}}, "data.root is not set"),
    (DataloadJob, {"data": {"dataset": "mine"}}, "is not of the form package.module:function"),
    (DataloadJob, {"data": {"dataset": "no_such:make"}}, "but there is no module no_such in"),
    (InferenceJob, {"inference": {"batch_sizes": []}}, "inference.batch_sizes is empty"),
    (InferenceJob, {"inference": {"strategies": []}}, "inference.strategies is empty"),
    (
        InferenceJob,
        {"inference": {"batch_sizes": [8, 1, 8]}},
        "inference.batch_sizes has 8 2 times",
    ),
    (InferenceJob, {"model": {"name": "resnet19"}}, "model.name is 'resnet19'"),
    (InferenceJob, {"data": {"name": "mnist"}}, "data.root is not set"),
]


@pytest.mark.parametrize(("job", "sections", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_what_cannot_be_measured_is_refused_with_key_and_value(job, sections, said):
    values = {"name": "test", "launch": {"device": "cpu"}, "resources": {"gpus": 2}, **sections}
    with pytest.raises(JobError) as error:
        load_workload(msgspec.convert(values, job)).check()
    assert said in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.workers=[0,-1]", "data.workers is [0, -1], must be"),
        ("data.repeats=0", "data.repeats is 0, must be 1 or more"),
        ("data.name=digits", "digits, which is held in memory: there is nothing to"),
    ],
)
def test_values_out_of_range_and_data_in_memory_are_refused(override, said):
    with pytest.raises(JobError) as error:
        load_workload(load_job("dataload", overrides=[override]).job).check()
    assert said in error.value.message


def test_random_images_need_no_data_set():
    given = {"data": {"name": "mnist"}, "inference": {"image_shape": [1, 28, 28]}}
    load_workload(msgspec.convert({"name": "test", **given}, InferenceJob)).check()
