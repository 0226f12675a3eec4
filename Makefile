# Everything runs inside .venv, which every target makes on its own when it is missing or out of date. The demo needs
# Python alone; the targets for developers install the rest.
#
#   PYTHON=…   the interpreter to try first for .venv
#   JOBS=…     test processes (default: one more than there are cores, for many tests wait)
#   ARGS=…     passed on to pytest, the demo, the benchmark or the proof (for these two: names of their parts)
#   SCALE=…    multiplies the numbers of `make proof` (default: 1)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup demo test check bench proof clean static services compiler

VENV  := .venv
BIN   := $(VENV)/bin
PY    := $(BIN)/python
# The package alone is installed; the package, every extra and the tools are.
BASE  := $(VENV)/.base-ready
READY := $(VENV)/.ready
JOBS  ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
SCALE ?= 1

# The tests start hundreds of processes: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

COMMA := ,
RECENT := import sys; sys.exit(sys.version_info < (3, 11))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: services ## make .venv and install everything that developing and testing need
	@echo "setup: $(VENV) is ready"

demo: $(BASE) ## run producers and workers through an embedded queue for ten seconds
	@$(BIN)/holdfast demo $(ARGS)

test: static services ## format, lint, types, import directions and every test but the proofs
	$(PY) -m pytest -m "not proof" -n $(JOBS) --dist loadgroup $(ARGS)

# Branch coverage of model, dispatch and service is measured only if all tests run (pyproject.toml has the bound).
check: static compiler ## format, lint, types, import directions, the fast tests that need no database, and coverage
	HOLDFAST_NO_SERVICES=1 $(PY) -m pytest -m "not proof and not slow and not services" -n $(JOBS) --dist loadgroup \
	  $(if $(ARGS),$(ARGS),--cov)

bench: $(READY) ## measure the speed ratios
	@$(PY) -m bench $(ARGS)

proof: services ## fault and soak runs with large numbers; writes docs/proof.md
	$(PY) -m tests.proof --scale $(SCALE) $(ARGS)

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) .coverage build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@for dir in src tests bench examples; do \
	  if [ -d "$$dir" ]; then find "$$dir" -name __pycache__ -type d -prune -exec rm -rf {} +; fi; \
	done

# PostgreSQL, Redis, Node.js, a C compiler and Azurite, for the tests.
services: $(READY)
	@$(PY) -m tests.services

# The library that makes faults of a disk is compiled when a test first needs it.
compiler: $(READY)
	@$(PY) -m tests.services cc

static: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(PY) -m mypy
	$(BIN)/lint-imports --no-logo

# Make .venv unless it is there. A name on PATH may be a shim for an interpreter that is not installed, so each candidate
# is run, not looked up.
define make_venv
if ! $(PY) -c '$(RECENT)' >/dev/null 2>&1; then \
  found=; \
  for name in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
    if "$$name" -c 'import ensurepip, venv; $(RECENT)' >/dev/null 2>&1; then found=$$name; break; fi; \
  done; \
  if [ -z "$$found" ]; then \
    echo "setup: Holdfast needs Python 3.11 or newer with the venv module; none of python3.13," >&2; \
    echo "setup: python3.12, python3.11, python3 is one. Install it, or name it: make demo PYTHON=/path/to/python" >&2; \
    exit 1; \
  fi; \
  echo "setup: making $(VENV) with $$("$$found" --version)"; \
  "$$found" -m venv --clear $(VENV); \
fi
endef

# $(call install,what,how it is called)
define install
if command -v uv >/dev/null 2>&1; then \
  echo "setup: installing $(2) with uv"; \
  uv pip install --quiet --python $(PY) -e '$(1)'; \
else \
  echo "setup: installing $(2) with pip"; \
  $(PY) -m pip install -qq --disable-pip-version-check -e '$(1)'; \
fi
endef

$(BASE): pyproject.toml
	@set -eu; $(make_venv); $(call install,.,Holdfast); touch $@

$(READY): pyproject.toml
	@set -eu; $(make_venv); $(call install,.[dev],Holdfast$(COMMA) every extra and the tools); touch $(BASE) $@
