"""Write docs/cluster-profiles.md: the keys from hpcdist/cluster/profile.py, between fixed text.

python docs/generate_cluster_profiles.py > docs/cluster-profiles.md
"""

from __future__ import annotations

from generate_job_keys import PACKAGE, structs, table

from hpcdist.cluster.profile import LSF_OPTIONS

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

For some clusters a file comes with hpcdist, with comments:

    hpcdist cluster copy                   # for which
    hpcdist cluster copy dtu               # look at it
    hpcdist cluster copy dtu --write       # ./hpcdist.yaml; --out FILE and --force as above

What there is, and what a job would ask for:

    hpcdist cluster list                   # the profiles; * is the one used without --cluster
    hpcdist cluster show [NAME]            # every value, and where it comes from
    hpcdist render ddp --nodes 2 --gpus 2 --explain      # the script, and how its numbers come about

## Where profiles stand, and which one counts

- The project's file: `hpcdist.yaml` in the current directory, or in the nearest folder above it, up to the
  root of the git repository.
- The user's file: `$XDG_CONFIG_HOME/hpcdist/hpcdist.yaml`, by default `~/.config/hpcdist/hpcdist.yaml`.

A cluster that both describe is merged key by key; the project's value wins, and `null` there takes the
user's away. Lists, `environment` and `lsf` count as one value each. `--partition`, `--account` and `--qos` win over
both files.

Which cluster: `--cluster NAME`, else the variable `HPCDIST_CLUSTER`, else `default` of the project's file,
else of the user's, else the only one there is. Where none of these says one, jobs are submitted without a
profile. The profile's `scheduler` is used unless `--scheduler` or `--local` is given; with `--local` (and
`--debug`, and `--scheduler local`) no profile is used at all.

What a job says wins over the profile: `cpus_per_gpu`, `mem_gb` and `time_limit_min` fill in what `resources`
leaves unset. `--time` is short for `--set resources.time_limit_min`, and takes minutes, `H:MM:SS` or
`D-HH:MM:SS`; `24:00` is refused, since it means minutes to sbatch and hours to bsub.

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
- `setup`: each item is bash, of one line or several; a single text is a list of one.
- `environment`: values are text; numbers and true or false are to be in quotes.
- `python`: `~` is expanded; a path is relative to the file, a bare name is looked up where the job runs.
- `directives`: what hpcdist sets itself is refused, with the key to use instead: `--partition` is the key
  partition.
- A value that looks secret (a token, a password, an API key) is refused: it would stand in the script and in the
  run directory. Export it in the shell that submits, or read it in `setup`:
  `export HF_TOKEN=$(cat ~/.hf-token)`.
"""

_LSF_HEAD = """
## The section `lsf`

LSF sites differ in which options their bsub knows, in what memory is counted per, and in how a process is
started on a host. Nothing here is read by Slurm.

"""

_LSF_NOTES = """
- Slots: a node's ranks times `cpus_per_gpu`, over all nodes: `-n 16 -R "span[ptile=8]"`; of one node `span[hosts=1]`.
- `options`: what is not listed is never sent. `-r` and `-ti` are then left out; where a job cannot do without
  an option (`-W` with a time limit, `-w` with `--after`), it is refused, and the message says which key or flag
  to leave out.
- Memory: `mem_gb` is per node; `mem_per` and `mem_unit` say how the site reads `rusage[mem=...]`. It is rounded up.
  LSF's MB may be 2**20 bytes: then a job gets up to 5 % more than it asked for (7 % with `mem_unit: GB`), never less.
- GPUs: `gpu` is the value of `-gpu`, whose number is per host; `gpu_rusage` replaces it at older sites. With
  `gpu: null` nothing is sent: the queue gives the GPUs. `gpu_type` is appended as `gmodel=`.
- `-R` in `directives`: one string is sent, since several are refused by some engines. Sections of the
  directives are merged with hpcdist's: `select` by `&&`, `rusage` resource by resource, where `mem_gb` and the GPUs
  win over what a directive says; `same`, `cu`, `order` and `affinity` as they are. `-R "rusage[mem=5GB]"` is memory
  per slot, however many slots a job has. `span` is refused, and so are alternatives (`||` in rusage) and compound
  strings (`2*{...}`).
- `qos` and `gpu_request: gres` are Slurm's, and refused; a service class is the directive `-sla NAME`.
- bsub reads values in double quotes, so `"` and `\\` cannot stand in them; `directives` are sent as they are written.
"""

_EXAMPLES = """
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

InfiniBand for gloo and NCCL:

```yaml
clusters:
  gpu:
    partition: gpu
    interface: ib0
```

LSF, with GPUs by `-gpu` and memory per slot (more in `hpcdist cluster copy dtu`):

```yaml
clusters:
  gpu:
    scheduler: lsf
    partition: gpuv100      # the queue
    cpus_per_gpu: 4
    time_limit_min: 1440
    constraint: gpu32gb     # select[gpu32gb]
    directives:
      - -R "rusage[mem=5GB]"
```

An older LSF site: GPUs as a resource, memory per host in the site's unit, ssh instead of blaunch, and an engine
that knows few options:

```yaml
clusters:
  old:
    scheduler: lsf
    partition: gpu
    lsf:
      options: [-J, -q, -n, -R, -W, -o]
      gpu_rusage: ngpus_excl_p={gpus}
      mem_per: host
      mem_unit: MB
      launcher: ssh {host} {command}
```

This page is written by `python docs/generate_cluster_profiles.py`.
"""


def page() -> str:
    """The whole page as Markdown."""
    found = structs(PACKAGE / "cluster" / "profile.py")
    lsf = table(found["LsfOptions"]).replace(
        "msgspec.field(default_factory=LSF_OPTIONS.copy)", " ".join(LSF_OPTIONS)
    )
    keys = table(found["ClusterProfile"])
    return f"{_HEAD}{keys}{_NOTES}{_LSF_HEAD}{lsf}{_LSF_NOTES}{_EXAMPLES}"


if __name__ == "__main__":
    print(page(), end="")
