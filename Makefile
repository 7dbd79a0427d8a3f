# `make demo` opens the first notebook, `make test` runs every check; each installs what it needs into $(VENV) first.
#
# Without a GPU choose PyTorch's CPU build, which is a tenth of the size: TORCH takes whatever pip install takes, so
# what pytorch.org says for "CPU" goes there (make demo TORCH="torch --index-url ...").

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
# make demo HEADLESS=1 executes the notebook instead of opening it.
HEADLESS ?=
# More arguments for the program behind a target: make prove ARGS="--only oracle", make demo ARGS="--port 8900".
ARGS ?=

STARTED := $(shell date +%s)
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# Scripts are run as modules: their first lines hold the path of the environment, which may have spaces in it.
PY := $(VENV)/bin/python
# Python compiles what it imports, once; to compile all that is installed takes a minute.
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
export PIP_ROOT_USER_ACTION := ignore
# OpenMP's threads spin while they wait, which makes a step many times slower on a machine that has other work.
export OMP_WAIT_POLICY ?= PASSIVE
CHROMIUM := chromium fonts-liberation fonts-dejavu-core fonts-noto-color-emoji

.PHONY: help demo test lint prove clean need-test FORCE

help:
	@echo 'make demo    open notebooks/01_first_steps.ipynb in JupyterLab (HEADLESS=1: execute it instead)'
	@echo 'make test    ruff, mypy, node --test, pytest'
	@echo 'make lint    ruff and mypy'
	@echo 'make prove   the full volumes of what the tests sample; interrupt it and run it again: it goes on'
	@echo 'make clean   remove what was built, the environment too'

demo: $(VENV)/.demo
	@$(PY) -m nvexplore.cli demo --here $(if $(HEADLESS),--headless) $(ARGS)

# pytest is the last program that runs: its closing line is what a reader, or a machine, looks for.
test: need-test lint
	node --test widgets/*.test.js
	$(PY) -m pytest -n 2 --dist loadfile $(ARGS)
	@echo "make test: all passed in $$(($$(date +%s) - $(STARTED))) s"

lint: $(VENV)/.dev
	$(PY) -m ruff check --output-format=concise
	$(PY) -m mypy

prove: $(VENV)/.dev
	@$(PY) -m tests.prove $(ARGS)

clean:
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# --- the environment ------------------------------------------------------------------------------------------------

# One stamp a set of extras; a second run installs nothing. torch comes first and by itself, so that what TORCH says
# about where it comes from holds for it alone.
$(VENV)/.demo: pyproject.toml $(VENV)/.torch
	@echo 'installing $(TORCH) and nvexplore[demo] into $(VENV) ...'
	@$(PIP) $(TORCH)
	@$(PIP) -e '.[demo]'
	@touch $@

# The tests' set has the demo's in it: installed at once, pip looks for what fits together once.
$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	@echo 'installing $(TORCH) and nvexplore[dev] into $(VENV) ...'
	@$(PIP) $(TORCH)
	@$(PIP) -e '.[dev]'
	@touch $(VENV)/.demo $@

# Holds TORCH as it was installed, and is written only when that changes.
$(VENV)/.torch: FORCE | $(VENV)/.made
	@echo '$(TORCH)' | cmp --silent - $@ || echo '$(TORCH)' > $@

# An environment that someone made before is used as it is, provided that it has pip.
$(VENV)/.made:
	@if ! $(PY) -m pip --version > /dev/null 2>&1; then \
	  if ! command -v $(PYTHON) > /dev/null; then \
	    echo 'nvexplore needs Python 3.11 or newer: sudo apt-get install python3 python3-venv' >&2; exit 1; \
	  elif ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	    echo "nvexplore needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V): name another as PYTHON=..." >&2; exit 1; \
	  elif ! $(PYTHON) -c 'import ensurepip, venv' 2> /dev/null; then \
	    echo 'nvexplore needs python3-venv: sudo apt-get install python3-venv' >&2; exit 1; \
	  fi; \
	  $(PYTHON) -m venv $(VENV); \
	fi
	@touch $@

# --- what pip cannot install: one line says what is missing ---------------------------------------------------------

# Root on a Debian (a container, CI) gets chromium without asking; anybody else is told what to type.
need-test:
	@if ! node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2> /dev/null; then \
	  echo 'nvexplore needs node 18 or newer to test: sudo apt-get install nodejs' >&2; exit 1; \
	fi
	@if [ ! -x /usr/bin/chromium ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    echo 'installing chromium ...'; export DEBIAN_FRONTEND=noninteractive; \
	    apt-get update -qq < /dev/null; \
	    apt-get install -y -qq --no-install-recommends $(CHROMIUM) < /dev/null > /dev/null; \
	  else \
	    echo 'nvexplore needs chromium to test: sudo apt-get install --no-install-recommends $(CHROMIUM)' >&2; exit 1; \
	  fi; \
	fi
