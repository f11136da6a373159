# Two commands: `make run` trains a language model on real text, `make test` runs the default tests.
# Paths are relative, so a checkout below a folder with spaces works.
SHELL := /bin/bash
PY := .venv/bin/python
export OMP_WAIT_POLICY ?= passive
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

.PHONY: run test test-slow test-network test-large gpu-check check format lint types layers docs wheel setup setup-dev clean

run: setup
	$(PY) -m oarlock train configs/shakespeare.toml --resume auto

# Two workers with one thread each: the same work as one worker with two, without the waiting.
test: setup-dev
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile $(ARGS)

test-slow: setup-dev
	$(PY) -m pytest -m slow $(ARGS)

test-network: setup-dev
	$(PY) -m pytest -m network $(ARGS)

test-large: setup-dev
	$(PY) -m pytest -m large $(ARGS)

# Under 5 minutes on an H200. With `make gpu-check PY=python` that Python's own torch is used and nothing is set up.
gpu-check: $(if $(filter command,$(origin PY)),,setup-dev)
	@PY="$(PY)" PYTHONPATH="src$(if $(PYTHONPATH),:$(PYTHONPATH))" scripts/gpu-check $(ARGS)

# All that needs no run of the code, in seconds: for every commit.
check: lint types layers

format: setup-dev
	$(PY) -m ruff check --fix . && $(PY) -m ruff format .

lint: setup-dev
	$(PY) -m ruff check . && $(PY) -m ruff format --check .

types: setup-dev
	$(PY) -m pyright --pythonpath $(PY)

layers: setup-dev
	.venv/bin/lint-imports

docs: setup-dev
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict -q

wheel: setup-dev
	$(PY) -m pip wheel -q --no-deps -w dist .

setup:
	@scripts/setup run

setup-dev:
	@scripts/setup dev

clean:
	rm -rf build dist site .venv
