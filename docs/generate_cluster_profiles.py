"""Write docs/cluster-profiles.md: the keys from hpcdist/cluster/profile.py, between fixed text.

python docs/generate_cluster_profiles.py > docs/cluster-profiles.md
"""

from __future__ import annotations

from generate_job_keys import PACKAGE, structs, table

_HEAD = """# Cluster profiles

What a job needs to know about a cluster, and no job file should say: partition, account, how GPUs are
asked for, which modules to load. It stands in `hpcdist.yaml`, so that

    hpcdist submit ddp --nodes 2 --gpus 2

is all that is to be typed, and the same job runs on another cluster with `--cluster NAME`.

## A first file

On a login node:

    hpcdist cluster detect                 # look at it
    hpcdist cluster detect --write         # ./hpcdist.yaml, for this project
    hpcdist cluster detect --out ~/.config/hpcdist/hpcdist.yaml      # for all projects

It asks the scheduler (sinfo, scontrol and sacctmgr; bqueues, bparams and bhosts) and writes a profile for
every partition with GPUs and for the default one. It overwrites nothing unless `--force` says so. What the
scheduler cannot tell, such as modules, is yours to add.

    hpcdist cluster list                   # the profiles; * is the one used without --cluster
    hpcdist cluster show [NAME]            # every value, and where it comes from

## Where profiles stand, and which one counts

- The project's file: `hpcdist.yaml` in the current directory, or in the nearest folder above it, up to the
  root of the git repository.
- The user's file: `$XDG_CONFIG_HOME/hpcdist/hpcdist.yaml`, by default `~/.config/hpcdist/hpcdist.yaml`.

A cluster that both describe is merged key by key; the project's value wins, and `null` there takes the
user's away. Lists and `environment` count as one value each. `--partition`, `--account` and `--qos` win over
both files.

Which cluster: `--cluster NAME`, else the variable `HPCDIST_CLUSTER`, else `default` of the project's file,
else of the user's, else the only one there is. Where none of these says one, jobs are submitted without a
profile. The profile's `scheduler` is used unless `--scheduler` or `--local` is given; with `--local` (and
`--debug`, and `--scheduler local`) no profile is used at all.

What a job says wins over the profile: `cpus_per_gpu`, `mem_gb` and `time_limit_min` fill in what `resources`
leaves unset. `--time` is short for `--set resources.time_limit_min`, and takes minutes, `H:MM:SS` or
`D-HH:MM:SS`.

## Format

```yaml
default: gpu            # without --cluster

clusters:
  gpu:                  # any name
    partition: gpu
  cpu:
    partition: standard
    gpu_request: none
```

"""

_TAIL = """
- `setup`: each item is bash, of one line or several; a single text is a list of one.
- `environment`: values are text; numbers and true or false are to be in quotes.
- `python`: `~` is expanded; a path is relative to the file, a bare name is looked up where the job runs.
- `directives`: what hpcdist sets itself is refused, with the key to use instead: `--partition` is the key
  partition.
- A value that looks secret (a token, a password, an API key) is refused: it would stand in the script and in the
  run directory. Export it in the shell that submits, or read it in `setup`:
  `export HF_TOKEN=$(cat ~/.hf-token)`.

## Examples

A partition with GPUs, charged to a project:

```yaml
clusters:
  gpu:
    scheduler: slurm
    partition: gpu
    account: proj42
    qos: normal
    cpus_per_gpu: 8
    mem_gb: 200
    time_limit_min: 720
```

GPUs of one type, at a site that knows them as gres (`--gres=gpu:a100:4`):

```yaml
clusters:
  a100:
    partition: gpu
    gpu_request: gres
    gpu_type: a100
    constraint: nvlink
```

Whole nodes, which are not asked for by GPU:

```yaml
clusters:
  nodes:
    partition: batch
    gpu_request: none
    directives:
      - --exclusive
```

Modules and a virtual environment:

```yaml
clusters:
  gpu:
    partition: gpu
    setup:
      - module purge
      - module load cuda/12.4
      - source ~/venvs/torch/bin/activate
    python: ~/venvs/torch/bin/python
```

conda:

```yaml
clusters:
  gpu:
    partition: gpu
    setup:
      - source ~/miniforge3/etc/profile.d/conda.sh
      - conda activate torch
    python: ~/miniforge3/envs/torch/bin/python
    environment:
      NCCL_DEBUG: WARN
      OMP_NUM_THREADS: "4"
```

InfiniBand for gloo and NCCL, and LSF:

```yaml
clusters:
  summit:
    scheduler: lsf
    partition: batch        # the queue
    account: PROJ42
    interface: ib0
```

This page is written by `python docs/generate_cluster_profiles.py`.
"""


def page() -> str:
    """The whole page as Markdown."""
    keys = table(structs(PACKAGE / "cluster" / "profile.py")["ClusterProfile"])
    return f"{_HEAD}{keys}{_TAIL}"


if __name__ == "__main__":
    print(page(), end="")
