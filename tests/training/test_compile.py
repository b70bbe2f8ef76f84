"""torch.compile: trained with, and told beforehand where it cannot work."""

import pytest
import torch

from hpcdist.base.errors import JobError
from hpcdist.training import checks
from hpcdist.workloads import load_workload

COMPILING_LIMIT_S = 300


@pytest.fixture(scope="module")
def kept_kernels(tmp_path_factory, import_for_ranks, lightning_is_imported):
    """The folder of compiled kernels, for all that compile the same."""
    import_for_ranks("torch._inductor.compile_fx")
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def kernels(kept_kernels, monkeypatch):
    """Where compiled kernels go, without vectors: to see which there are would compile more."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept_kernels))
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):
        yield kept_kernels


def compiled(kernels):
    return set(kernels.rglob("*.so"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "case",
    [(("single", "train"), True, 8), (("auto", "lightning"), "max-autotune", 12)],
    ids=["torch loop", "lightning, max-autotune"],
)
def test_a_compiled_model_trains_like_others(train_ranks, make_job, kernels, case):
    trainer, setting, width = case
    before = compiled(kernels)
    sections = {"model": {"name": "mlp", "args": {"hidden": [width]}}}
    train = {"max_steps": 3, "lr": 0.01}
    plain = train_ranks(make_job("single", **sections, train=train), 1)
    assert compiled(kernels) == before
    train["compile"] = setting
    job = make_job(*trainer, **sections, train=train)
    done = train_ranks(job, 1, limit_s=COMPILING_LIMIT_S)
    assert done.exit_codes == [0], done.log()
    assert compiled(kernels) > before
    # Lightning has other batches.
    for name, expected in plain.weights().items() if trainer[1:] != ("lightning",) else ():
        torch.testing.assert_close(done.weights()[name], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("device", "said"),
    [("cpu", r"has no C\+\+ compiler: g\+\+"), ("cuda", "has no C compiler: gcc or clang")],
)
def test_a_host_without_a_compiler_is_told_before_its_ranks_start(
    make_job, tmp_path, monkeypatch, device, said
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    for workload in ("train", "lightning"):
        with pytest.raises(JobError, match=said) as error:
            load_workload(make_job("ddp", workload, train={"compile": True})).check_host(device)
        assert "leave train.compile out" in error.value.hint
        load_workload(make_job("ddp", workload)).check_host(device)


def test_a_compiler_that_a_variable_names_is_the_one_that_counts(make_job, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(JobError, match=r"compiler: no-such-compiler \(variable CXX\)"):
        load_workload(make_job(train={"compile": True})).check_host("cpu")


def test_a_python_without_headers_is_told_with_the_path(make_job, tmp_path, monkeypatch):
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(checks.sysconfig, "get_path", lambda _name: str(tmp_path))
    with pytest.raises(JobError, match=f"no headers of its Python: {tmp_path}/Python.h"):
        load_workload(make_job(train={"compile": True})).check_host("cpu")
