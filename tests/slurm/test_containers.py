"""A run in an image that srun starts itself on a real Slurm; images that hpcdist starts: see
tests/conformance and tests/agent/test_container.py."""

from cluster_user import CPU, TWO
from containers import container, image  # noqa: F401 - a fixture
from counting import COUNT, await_counting, end_counting
from interruptions import warn
from runtime_stand_ins import image_file, install


def test_a_run_in_an_image_that_srun_starts_goes_on(user, tmp_path, image):  # noqa: F811
    programs = install(tmp_path / "bin", "srun")
    environment = user.cluster.environment
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    pyxis = container(image_file(image, ".sqsh"), runtime="pyxis")
    run = user.submit(user.write("count.py", COUNT), *CPU, *TWO, *pyxis, env=environment)
    await_counting(user, run)
    warn(user, run)
    end_counting(user, run)
    assert run.read_attempt_verdict(0).kind == "time_limit"
