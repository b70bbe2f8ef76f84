"""`hpcdist render --explain`: why the numbers in a script are what they are."""


def test_the_script_is_the_same_with_and_without_the_explanation(hpcdist):
    plain = hpcdist("render", "ddp", "--scheduler", "slurm", "--nodes", "2", "--gpus", "2")
    told = hpcdist(
        *("render", "ddp", "--scheduler", "slurm", "--nodes", "2", "--gpus", "2", "--explain")
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout == plain.stdout
    assert "--cpus-per-task=2" in told.stdout
    assert "ranks x cpus_per_gpu" not in plain.stderr


def test_slurms_numbers_are_told_with_where_they_come_from(hpcdist):
    hpcdist.write(
        "hpcdist.yaml",
        "clusters: {c: {scheduler: slurm, cpus_per_gpu: 4, mem_gb: 64, gpu_request: gres}}\n",
    )
    done = hpcdist(
        *("render", "ddp", "--nodes", "2", "--gpus", "2", "--time", "90", "--no-requeue"),
        "--explain",
    )
    cpus, memory, gpus, limit = done.stderr.splitlines()
    assert cpus == (
        "CPUs: 2 nodes x 8 CPUs = 16 CPUs (2 ranks x cpus_per_gpu 4, from the profile; one agent "
        "per node): --nodes=2 --ntasks-per-node=1 --cpus-per-task=8"
    )
    assert memory == (
        "memory 64 GB per node (mem_gb, from the profile): --mem=61036M, for Slurm's M is 2**20 "
        "bytes; 128 GB in all"
    )
    assert gpus == "GPUs: 2 nodes x 2 GPUs = 4 GPUs (gpu_request: gres): --gres=gpu:2"
    assert limit == (
        "time limit 90 min (time_limit_min, from the job): --time=0-01:30:00 --signal=USR2@120; "
        "before the job is ended its ranks save a checkpoint, and the run ends with exit code 75"
    )


def test_what_is_not_asked_for_is_told_too(hpcdist):
    done = hpcdist(
        "render", "ddp", "--scheduler", "slurm", "--set", "launch.device=cpu", "--explain"
    )
    lines = done.stderr.splitlines()
    assert "memory: what the site gives, for mem_gb is unset" in lines
    assert "GPUs: not asked for (launch.device is cpu)" in lines
    assert lines[-1].startswith("time limit: the site's, for time_limit_min is unset; ")


def test_on_this_machine_every_rank_is_told_its_cpus(hpcdist):
    done = hpcdist(
        *("render", "ddp", "--local", "--nodes", "2", "--gpus", "2", "--explain"),
        *("--set", "launch.device=cpu"),
    )
    assert done.returncode == 0, done.stderr
    _, ranks, *nodes = done.stderr.splitlines()
    assert ranks.startswith("ranks: 2 nodes x 2 ranks = 4 ranks, on cpu with gloo, ")
    assert [line.split(": ")[0] for line in nodes] == ["node 0", "node 1"]
    for line in nodes:
        assert "rank 0: CPUs " in line
        assert "rank 1: CPUs " in line


def test_a_sweep_is_explained_once_for_each_shape(hpcdist):
    done = hpcdist(
        *("render", "ddp", "--scheduler", "slurm", "--explain"),
        *("--sweep", "nodes=1,2 train.lr=0.1,0.2"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    heads = [line for line in lines if "of 4 runs" in line]
    assert heads == [
        "2 of 4 runs: nodes=1 train.lr=0.1, nodes=1 train.lr=0.2",
        "2 of 4 runs: nodes=2 train.lr=0.1, nodes=2 train.lr=0.2",
    ]
    assert len([line for line in lines if line.startswith("CPUs: ")]) == 2


def test_runs_of_a_sweep_share_an_array_only_with_those_in_the_same_image(hpcdist):
    image = "docker://a/b"
    sets = ["--set", "container.runtime=podman", "--sweep", f"container.image={image}:1,{image}:2"]
    done = hpcdist("render", "check", "--scheduler", "slurm", *sets, "--repeat", 2, "--explain")
    assert done.returncode == 0, done.stderr
    explained = [line for line in done.stderr.splitlines() if "container: " in line]
    assert [line.split()[1].rstrip(",") for line in explained] == [f"{image}:1", f"{image}:2"]
    lines = [line.strip(" \\") for line in done.stdout.splitlines()]
    assert [line for line in lines if line.startswith(("#SBATCH --array", "--image"))] == [
        *("#SBATCH --array=0-1", f"--image={image}:1"),
        *("#SBATCH --array=0-1", f"--image={image}:2"),
    ]
