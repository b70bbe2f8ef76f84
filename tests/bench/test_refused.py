"""What no benchmark can measure is refused before it starts, with key, value and what to do."""

import msgspec
import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.load import load_job
from hpcdist.job.spec import AllreduceJob, DataloadJob, InferenceJob
from hpcdist.workloads import load_workload

REFUSED = [
    (AllreduceJob, {"allreduce": {"sizes": []}}, "allreduce.sizes is empty"),
    (AllreduceJob, {"allreduce": {"sizes": [1024, 1022]}}, "1,022, which is no multiple of the 4 "),
    (DataloadJob, {"data": {"batch_size": [8, 1, 8]}}, "data.batch_size has 8 2 times"),
    (DataloadJob, {"data": {"name": "face"}}, "data.name is 'face'"),
    (DataloadJob, {"data": {"name": "image_folder"}}, "data.root is not set"),
    (DataloadJob, {"data": {"dataset": "no_such:make"}}, "but there is no module no_such in"),
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


def test_data_in_memory_are_no_data_to_load():
    with pytest.raises(JobError, match="digits, which is held in memory: there is nothing to"):
        load_workload(load_job("dataload", overrides=["data.name=digits"]).job).check()
