"""The memory that cgroups leave, from trees of files as the kernel shows them."""

from hpcdist.machine.memory_left import memory_left


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")


def test_the_group_above_that_leaves_least_counts_and_read_files_count_as_free(tmp_path):
    write(tmp_path, max="max", current=10**12)
    write(tmp_path / "job", max=8000, current=5000, stat="anon 3500\ninactive_file 1500")
    write(tmp_path / "job" / "step", max="max", current=4000)
    assert memory_left("0::/job/step\n", tmp_path) == 4500


def test_version_1_is_read_where_the_controller_is(tmp_path):
    folder = tmp_path / "memory" / "slurm" / "job_7"
    stat = "inactive_file 1\ntotal_inactive_file 100"
    write(folder, limit_in_bytes=2000, usage_in_bytes=900, stat=stat)
    assert memory_left("4:memory:/slurm/job_7\n0::/\n", tmp_path) == 1200


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path):
    write(tmp_path / "job", max=100, current=150)
    assert memory_left("0::/job\n", tmp_path) == 0


def test_no_limit_is_none(tmp_path):
    write(tmp_path / "job", max="max", current=150)
    assert memory_left("0::/job\n", tmp_path) is None
