# The two commands for a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most of the time tests wait for clusters: more processes than a small machine has CPUs.
TEST_PROCESSES ?= 4
# The newest releases that setup.cfg allows, so that we see first what breaks; CONSTRAINTS=constraints.txt installs
# the versions that the suite passed on.
INSTALL := $(BIN)/python -m pip install $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
# Thousands of processes import what is tested: without byte code each compiles all of it, and takes 0.6 s and not 0.1.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

BROWSER_PACKAGES := chromium chromium-driver
# Debian's names of what the tests of a real Slurm need; the tests start their daemons themselves.
SLURM_PACKAGES := slurm-wlm slurmdbd munge mariadb-server iproute2 shellcheck
SSH_PACKAGES := openssh-server openssh-client rsync

# The container runtime that needs no rights, in which the tests start agents.
CONTAINER_PACKAGES := charliecloud-runtime

.PHONY: demo test quick floor mutants perf docs foreign disturbed lint package release fuzz constraints clean slurm browser container ssh

demo: $(VENV)/installed
	$(BIN)/hpcdist submit ddp --nodes 2 --gpus 2 --local
	$(BIN)/hpcdist submit ddp --nodes 1 --gpus 1 --local
	$(BIN)/hpcdist summary

# Prints at its end what was skipped, and how long it took.
test: $(VENV)/test-installed slurm browser container ssh
	$(PYTEST) -rs --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# What needs no cluster, browser or container.
QUICK := base bench cluster data doctor drill job machine monitor planning runs submission summary workloads
quick: $(VENV)/test-installed
	$(PYTEST) --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder $(QUICK:%=tests/%) \
		--ignore=tests/summary/test_browser.py $(PYTEST_ARGS)

# The quick tests with the oldest versions that setup.cfg allows, in an environment of their own.
floor:
	mkdir -p build
	$(PYTHON) .ci/floor.py > build/floor.txt
	$(MAKE) quick VENV=.venv-floor CONSTRAINTS=build/floor.txt PYTEST_ARGS="-W ignore::DeprecationWarning"

# Faults put into hpcdist one by one: prints how many of them the tests find. Needs a clean work tree, which it changes as it runs.
MUTANTS ?= 60
mutants: $(VENV)/test-installed
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python tests/mutants.py --number $(MUTANTS) $(if $(MUTANTS_SEED),--seed $(MUTANTS_SEED))

# Each benchmark of perf/ once and small, also without GPUs: shows that it runs, and no figure to report.
perf: $(VENV)/test-installed slurm
	@./tests/install-packages "whole commands" hyperfine
	$(BIN)/python perf/alarms.py --families 5
	$(BIN)/python perf/commands.py --pairs 1 --runs 6 --ranks 2 --windows 4
	$(BIN)/python perf/start.py --pairs 1 --ranks 4
	$(BIN)/python perf/train.py --pairs 1 --epochs 2 --ranks 2 --width 64 --steps 4
	$(BIN)/python perf/recording.py --pairs 1 --seconds 1 --steps 500
	$(BIN)/python perf/dataload.py --pairs 1 --workers 0 1 --faces 128
	$(BIN)/python perf/slurm.py --pairs 1 --points 4 --runs 6
	$(BIN)/python perf/lose_node.py --pairs 1

# Other packages' programs under torchrun and under hpcdist: one line for each.
foreign: $(VENV)/foreign-installed
	$(PYTEST) -v -m "foreign or not foreign" tests/foreign $(PYTEST_ARGS)

# Trainings on a real Slurm that lose ranks, agents, nodes, checkpoints and time: all end as if undisturbed, bit for bit.
disturbed: $(VENV)/test-installed slurm
	$(PYTEST) -m disturbed -v tests/slurm/test_exactness.py $(PYTEST_ARGS)

lint: $(VENV)/dev-installed
	$(BIN)/pre-commit run --all-files

# The documentation as a site, build/site/index.html. Broken links, and pages that no menu names, fail it.
docs: $(VENV)/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Checks the wheel and the sdist: what they hold, that a run starts from them, and that the installed packages fit together.
package: $(VENV)/test-installed
	$(PYTEST) tests/test_packaging.py
	$(BIN)/python -m pip check

# The wheel and the sdist of the version that hpcdist/base/version.py names, checked, and a tag for the commit.
release: $(VENV)/dev-installed package
	rm -rf build/release
	$(BIN)/python -m build --outdir build/release
	$(BIN)/python -m twine check --strict build/release/*
	git tag "v$$($(BIN)/python -c 'import hpcdist; print(hpcdist.__version__)')"

# Damaged inputs of every kind: prints how many were read and refused, and the seed; those that failed are in fuzz-failures.
FUZZ_NUMBER ?= 10000
fuzz: $(VENV)/test-installed
	env -u PYTHONDONTWRITEBYTECODE HPCDIST_FUZZ_NUMBER=$(FUZZ_NUMBER) HPCDIST_FUZZ_SEED=$(or $(FUZZ_SEED),$(shell date +%s)) $(BIN)/python -m pytest tests/fuzz -s -q -o timeout=0

# After the whole suite has passed.
constraints: $(VENV)/test-installed
	$(BIN)/python .ci/constraints.py > constraints.txt

# Never fail: without Slurm, a browser or a container runtime their tests are skipped, with a reason.
slurm:
	@./tests/install-packages "a real Slurm" $(SLURM_PACKAGES)

ssh:
	@./tests/install-packages "a real sshd" $(SSH_PACKAGES)

browser:
	@./tests/install-packages "a real browser" $(BROWSER_PACKAGES)

container:
	@./tests/install-packages "a real container" $(CONTAINER_PACKAGES)

# pip 23 finds no set of packages for Azure's SDK.
$(VENV)/python-made:
	$(PYTHON) -c 'import sys; sys.exit("hpcdist needs Python 3.10 or newer, this is " + sys.version) if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/installed: $(VENV)/python-made setup.cfg pyproject.toml
	$(INSTALL) --editable .
	@touch $@

$(VENV)/test-installed: $(VENV)/python-made setup.cfg pyproject.toml
	$(INSTALL) --editable '.[test]'
	@touch $@ $(VENV)/installed

$(VENV)/foreign-installed: $(VENV)/test-installed
	$(INSTALL) --editable '.[test,foreign]'
	@touch $@

$(VENV)/docs-installed: $(VENV)/python-made setup.cfg pyproject.toml
	$(INSTALL) --editable '.[docs]'
	@touch $@ $(VENV)/installed

$(VENV)/dev-installed: $(VENV)/python-made setup.cfg pyproject.toml
	$(INSTALL) --editable '.[test,dev]'
	@touch $@ $(VENV)/installed $(VENV)/test-installed

clean:
	rm -rf $(VENV) .venv-floor build dist *.egg-info
