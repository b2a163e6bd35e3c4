# Every target works on a fresh clone and prints what it runs.
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash

.PHONY: setup demo test check bench proof device-check docs ptx clean

setup: .venv/.dev

# setuptools warns of editable installations, at length; this one is meant to be one.
INSTALL := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet

# The development environment: everything that test, check and bench need. An old pip resolves for minutes.
.venv/.dev: pyproject.toml
	$(PYTHON) -m venv .venv
	$(INSTALL) --upgrade pip
	$(INSTALL) --editable '.[dev]'
	touch $@ .venv/.demo

# The demo needs less: the sidecar and torch.
.venv/.demo: pyproject.toml
	$(PYTHON) -m venv .venv
	$(INSTALL) --upgrade pip
	$(INSTALL) --editable '.[demo]'
	touch $@

demo: .venv/.demo
	$(BIN)/spikewatch demo $(ARGS)

test: .venv/.dev
	$(BIN)/python -m pytest -m 'not proof' --numprocesses 2 --dist loadgroup $(ARGS)

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/spikewatch check rules/*.rules.yaml rules/extra/*.rules.yaml rules/responses.yaml
	$(BIN)/spikewatch test rules/*.test.yaml rules/extra/*.test.yaml rules/responses_test.yaml

bench: .venv/.dev
	$(BIN)/python -m bench

proof: .venv/.dev
	$(BIN)/python -m pytest -m proof --timeout 3600 $(ARGS)

# On a machine with an NVIDIA GPU: what each call costs and permits, and which metrics were seen on a real device.
device-check: .venv/.dev
	$(BIN)/python -m sidecar.collectors.nvml.check $(ARGS)
	$(BIN)/python -m probes.devicecheck

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache

docs: .venv/.dev
	$(BIN)/python docs/generate.py

# The probes' kernels to PTX; a test compares what is shipped with what this gives.
ptx: .venv/.dev
	$(BIN)/python -m probes.ptxbuild
