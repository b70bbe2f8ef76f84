"""Write docs/cluster-profiles.md: the keys from hpcdist/cluster/profile.py, between fixed text.

python docs/generate_cluster_profiles.py > docs/cluster-profiles.md
"""

from __future__ import annotations

from generate_job_keys import table

from hpcdist.cluster.profile import AzureOptions, ClusterProfile, LsfOptions
from hpcdist.job.keys import keys_of

_HEAD = """# Cluster profiles

A profile holds what a job must know about a cluster but no job file should contain: the partition, the account, how GPUs
are requested, which modules to load. Profiles are in the file `hpcdist.yaml`. The same job runs on another cluster with
`--cluster NAME`.

## A first file

On a login node:

    hpcdist cluster detect                 # look at it
    hpcdist cluster detect --write         # ./hpcdist.yaml, for this project
    hpcdist cluster detect > ~/.config/hpcdist/hpcdist.yaml          # for all projects

The command asks the scheduler and writes one profile for every partition with GPUs and one for the default partition. It
overwrites no file. Add yourself what the scheduler does not know, such as modules.

hpcdist ships a commented file for some clusters:

    hpcdist cluster copy                   # lists these clusters
    hpcdist cluster copy dtu               # look at it
    hpcdist cluster copy dtu --write       # ./hpcdist.yaml

These commands show your profiles and what a job would request:

    hpcdist cluster show [NAME]            # every value, and where it comes from; all names
    hpcdist explain ddp --nodes 2 --gpus 2     # the script: what each line does, and its key or flag

## Where profiles are, and which one applies

- The project's file: `hpcdist.yaml` in the current directory, or in the nearest folder above it, up to the
  root of the git repository.
- The user's file: `$XDG_CONFIG_HOME/hpcdist/hpcdist.yaml`, by default `~/.config/hpcdist/hpcdist.yaml`.

One file counts: the user's, if the project has none. `--partition`, `--account` and `--qos` override it.

The first of these that is given selects the cluster: `--cluster NAME`, the variable `HPCDIST_CLUSTER`, `default` in the file, the
only cluster there is. Otherwise jobs are submitted without a profile, and so they are
with `--local` and `--scheduler local`. `--scheduler` overrides the profile's `scheduler`.

The job's own values win over the profile. `--time` is short for `--set resources.time_limit_min`. It takes minutes, `H:MM:SS` or
`D-HH:MM:SS`. `24:00` is refused, because it means minutes to sbatch and hours to bsub.

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

_NOTES = """
- `setup`: each item is bash code of one or more lines. A single text is a list of one item.
- `environment`: values are text. Put numbers, true and false in quotes.
- `python`: `~` is expanded. A path is relative to the file; a bare name is looked up on the machine that runs the job.
- `container`: has the keys of [a job's section `container`](job-keys.md#container), and counts for jobs that name no image. A path
  of an image is relative to the file. See [containers.md](containers.md).
- `host`: `hpc` or `me@login.site.org:/work/me`. The keys beside it, and paths in them, are for that host: see
  [laptop.md](laptop.md).
- `directives`: options that hpcdist sets itself are refused, with the name of the key to use: `--partition` is the key
  partition.
- A value that looks secret, by its name (a token, a password) or by itself (`ghp_...`, a private key), is refused in every key,
  because it would appear in the script and in the run directory. Export it in the shell that submits, or read it in `setup`:
  `export HF_TOKEN=$(cat ~/.hf-token)`.
"""

_LSF_HEAD = """
## The section `lsf`

The differences between LSF sites; other schedulers ignore this section. See also [lsf.md](lsf.md).

"""

_LSF_NOTES = """
- Slots: `-n` is the number of a node's ranks times `cpus_per_gpu`, over all nodes: `-n 16 -R "span[ptile=8]"`. A job on one
  node has `span[hosts=1]`.
- Memory: the value is rounded up, and LSF's MB may be 2**20 bytes: a job gets up to 5 % more than it requested, and never less.
- GPUs: with `gpu: null` nothing is sent, and the queue assigns the GPUs. `gpu_type` is appended as `gmodel=`.
- `-R` in `directives` is merged with hpcdist's own into one string: `select` by `&&`, and `rusage` by `:`, where `mem_gb`
  overrides the memory of a directive. `same`, `cu`, `order` and `affinity` are sent as they are. `-R "rusage[mem=5GB]"` is memory
  per slot. `span` is refused.
- `qos` belongs to Slurm, and is refused. For a service class, use the directive `-sla NAME`.
- bsub reads values in double quotes, so they cannot contain `"` and `\\`. `directives` are sent as they are written.
"""

_AZURE_HEAD = """
## The section `azure`

The workspace of Azure Machine Learning that jobs go to ([azure.md](azure.md)); other schedulers ignore this section.
`subscription`, `resource_group`, `workspace`, `compute`, and one of `environment` and `image` must be set.

"""

_AZURE_NOTES = """
- The login is that of `az login`, or another that azure-identity finds.
- `partition`, `account`, `qos`, `constraint`, `gpu_type`, `mem_gb`, `directives` and `gpu_request: gres` are refused: the compute
  decides what a node has.
"""

_EXAMPLES = """
## Examples

A partition with GPUs, charged to a project; GPUs of one type, at a site that requests them as gres (`--gres=gpu:a100:4`); whole
nodes, without a request for GPUs:

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
    interface: ib0          # InfiniBand for gloo and NCCL
  a100:
    partition: gpu
    gpu_request: gres
    gpu_type: a100
    constraint: nvlink
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

uv: a project with its environment beside the file, made by `uv sync --frozen` on the login node. Nodes need no pip and no
internet. `uv run hpcdist submit ...` does the same without a profile, because jobs run with the interpreter that submits.


```yaml
clusters:
  gpu:
    partition: gpu
    python: .venv/bin/python
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

An LSF site whose queue assigns the GPUs, with memory per host and ssh instead of blaunch:

```yaml
clusters:
  old:
    scheduler: lsf
    partition: gpu
    lsf:
      gpu: null
      mem_per: host
      launcher: ssh {host} {command}
```

This page is generated by `python docs/generate_cluster_profiles.py`.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    keys, lsf, azure = (
        table(keys_of(struct)) for struct in (ClusterProfile, LsfOptions, AzureOptions)
    )
    sections = f"{_LSF_HEAD}{lsf}{_LSF_NOTES}{_AZURE_HEAD}{azure}{_AZURE_NOTES}"
    return f"{_HEAD}{keys}{_NOTES}{sections}{_EXAMPLES}"


if __name__ == "__main__":
    print(page(), end="")
