"""The zygote that starts both commands."""

import pytest
from harness import Zygote


@pytest.fixture(scope="session")
def launchers():
    with Zygote("torch.distributed.run", "hpcdist.cli.main", "hpcdist.cli.submit") as process:
        yield process
