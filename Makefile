# Everything runs inside .venv, which every target makes on its own when it is missing or out of date.
#
#   PYTHON=…   the interpreter to try first for .venv
#   JOBS=…     test processes (default: one more than there are cores, for many tests wait)
#   ARGS=…     passed on to pytest, the demo, the benchmark or the proof (for these two: names of their parts)
#   SCALE=…    multiplies the numbers of `make proof` (default: 1)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup demo test check bench proof clean static services

VENV  := .venv
BIN   := $(VENV)/bin
PY    := $(BIN)/python
READY := $(VENV)/.ready
JOBS  ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
SCALE ?= 1
# The emulated Azure of the tests.
AZURITE := 3.37.0

# The tests start hundreds of processes: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

RECENT := import sys; sys.exit(sys.version_info < (3, 11))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) services ## make .venv and install everything the other targets need
	@echo "setup: $(VENV) is ready"

demo: $(READY) ## run producers and workers through an embedded queue for ten seconds
	@$(BIN)/holdfast demo $(ARGS)

test: static services ## format, lint, types, import directions and every test but the proofs
	$(PY) -m pytest -m "not proof" -n $(JOBS) --dist loadgroup $(ARGS)

check: static services ## format, lint, types, import directions and the fast tests
	$(PY) -m pytest -m "not proof and not slow" -n $(JOBS) --dist loadgroup $(ARGS)

bench: $(READY) ## measure the speed ratios
	@$(PY) -m bench $(ARGS)

proof: $(READY) services ## fault and soak runs with large numbers; writes docs/proof.md
	$(PY) -m tests.proof --scale $(SCALE) $(ARGS)

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@for dir in src tests bench examples; do \
	  if [ -d "$$dir" ]; then find "$$dir" -name __pycache__ -type d -prune -exec rm -rf {} +; fi; \
	done

# What the tests start for themselves, PostgreSQL and Redis, the compiler of their disk shim, and npm: the system's
# packages. An emulated Azure is npm's, and lies under build/.
services:
	@set -eu; \
	missing=; \
	command -v postgres >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || \
	  missing="$$missing postgresql"; \
	command -v redis-server >/dev/null 2>&1 || missing="$$missing redis-server"; \
	command -v cc >/dev/null 2>&1 || missing="$$missing gcc libc6-dev"; \
	command -v npm >/dev/null 2>&1 || missing="$$missing nodejs npm"; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then \
	    echo "setup: the tests need$$missing: install it, or run make setup as root where apt-get is" >&2; \
	    exit 1; \
	  fi; \
	  echo "setup: installing$$missing"; \
	  mkdir -p /etc/postgresql-common; \
	  [ -e /etc/postgresql-common/createcluster.conf ] || \
	    echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get install -qq -y --no-install-recommends $$missing >/dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -qq -y --no-install-recommends $$missing >/dev/null; }; \
	fi
	@set -eu; \
	if ! grep -q '"version": "$(AZURITE)"' build/azurite/node_modules/azurite/package.json 2>/dev/null; then \
	  echo "setup: installing Azurite $(AZURITE) with npm"; \
	  rm -rf build/azurite; \
	  mkdir -p build/azurite; \
	  npm install --prefix build/azurite --no-save --no-package-lock --no-audit --no-fund --ignore-scripts \
	    --loglevel=error azurite@$(AZURITE) >/dev/null; \
	fi

static: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(PY) -m mypy
	$(BIN)/lint-imports --no-logo

# A name on PATH may be a shim for an interpreter that is not there, so each candidate is run, not looked up.
$(READY): pyproject.toml
	@set -eu; \
	if ! $(PY) -c '$(RECENT)' >/dev/null 2>&1; then \
	  found=; \
	  for name in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	    if "$$name" -c 'import ensurepip, venv; $(RECENT)' >/dev/null 2>&1; then found=$$name; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "setup: Holdfast needs Python 3.11 or newer with the venv module; none of python3.13," >&2; \
	    echo "setup: python3.12, python3.11, python3 is one. Install it, or name it: make setup PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  echo "setup: making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi; \
	if command -v uv >/dev/null 2>&1; then \
	  echo "setup: installing Holdfast and its tools with uv"; \
	  uv pip install --quiet --python $(PY) -e '.[dev]'; \
	else \
	  echo "setup: installing Holdfast and its tools with pip"; \
	  $(PY) -m pip install -qq --disable-pip-version-check -e '.[dev]'; \
	fi; \
	touch $@
