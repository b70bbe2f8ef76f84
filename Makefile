# The two commands for a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint clean

demo: $(VENV)/installed
	$(BIN)/hpcdist submit ddp --nodes 2 --gpus 2 --local
	$(BIN)/hpcdist submit ddp --nodes 1 --gpus 1 --local
	$(BIN)/hpcdist summary

test: $(VENV)/test-installed
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/python-made:
	$(PYTHON) -c 'import sys; sys.exit("hpcdist needs Python 3.10 or newer, this is " + sys.version) if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/python-made setup.cfg pyproject.toml
	$(BIN)/python -m pip install --editable .
	@touch $@

$(VENV)/test-installed: $(VENV)/python-made setup.cfg pyproject.toml
	$(BIN)/python -m pip install --editable '.[test]'
	@touch $@ $(VENV)/installed

$(VENV)/dev-installed: $(VENV)/python-made setup.cfg pyproject.toml
	$(BIN)/python -m pip install --editable '.[test,dev]'
	@touch $@ $(VENV)/installed $(VENV)/test-installed

clean:
	rm -rf $(VENV) build dist *.egg-info
