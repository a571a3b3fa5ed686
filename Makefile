# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# BLAS must not start threads of its own: Suture's threads are one a core.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

.PHONY: demo test slow check lint types bench clean

.venv/core: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Suture needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/dev: .venv/core
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,sql,torch,imaging,flower,tune]'
	@touch $@

.venv/bench: .venv/dev
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@

demo: .venv/core
	@rm -rf demo
	$(BIN)/suture run examples/demo.toml --out demo

test: .venv/dev
	$(BIN)/python -m pytest -n auto -m "not slow"

slow: .venv/dev
	$(BIN)/python -m pytest -n auto -m slow

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

check: lint types test slow

bench: .venv/bench
	$(BIN)/suture bench

clean:
	rm -rf .venv demo reproduced build *.egg-info
