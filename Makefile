# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := dev,docs,sql,torch,imaging,flower,tune,word
# Exact versions: the ranges of pyproject.toml say what may be installed, the lock what we test with.
PIP := install --quiet --disable-pip-version-check --constraint requirements.lock
# BLAS must not start threads of its own: Suture starts one thread per core.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

.PHONY: demo test slow check lint types docs gallery figures bench counts lock hooks clean

.venv/core: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Suture needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip $(PIP) -e .
	@touch $@

# torch first: a package that depends on any torch would otherwise bring a build with CUDA.
.venv/dev: .venv/core
	$(BIN)/pip $(PIP) torch==2.13.0
	$(BIN)/pip $(PIP) -e '.[$(EXTRAS)]'
	@touch $@

.venv/bench: .venv/dev
	$(BIN)/pip $(PIP) -e '.[bench]'
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

# The documentation site, in site/. A warning is an error; nothing is fetched from a network.
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint types docs test slow

# Pictures of every page, in docs/gallery/ (not committed; see docs/gallery.md).
gallery: .venv/dev
	$(BIN)/python docs/make_gallery.py

# The figures that the README shows, in docs/figures/ (committed).
figures: .venv/core
	$(BIN)/python docs/make_figures.py

bench: .venv/bench
	$(BIN)/suture bench

counts: .venv/dev
	$(BIN)/python benchmarks/counts.py

# Newest versions within the ranges of pyproject.toml, resolved together in an environment of their own.
lock:
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-lock/bin/pip install --quiet --disable-pip-version-check '.[$(EXTRAS),baselines,bench]'
	{ sed -n '/^#/p' requirements.lock; .venv-lock/bin/pip freeze --exclude suture | sed 's/+cpu$$//'; } > .venv-lock/lock
	mv .venv-lock/lock requirements.lock
	rm -rf .venv-lock build

# Run the checks of .pre-commit-config.yaml before every commit.
hooks: .venv/dev
	$(BIN)/pre-commit install

clean:
	rm -rf .venv .venv-lock demo reproduced build site docs/gallery *.egg-info
