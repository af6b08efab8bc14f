# `make train` and `make test` are the two commands; both install what they
# need into .venv first. `make test-matrix` tests with several TensorFlows, and
# with every one supported where ARGS=all. `make docs` builds a site of all documents
# and the reference into build/website; `make docs ARGS=--serve` shows it. `make tour`
# runs docs/tour.md; with ARGS=--write it puts outputs and pictures there.
# `make examples` runs the notebooks of docs/examples in full and stores their outputs.

.PHONY: train test suite site test-all test-slow test-gpu test-matrix lint docs tour examples clean
.DEFAULT_GOAL := test

# TensorFlow Privacy asks for Python 3.9 to 3.11; where there is only a later
# one, everything but it works.
PYENV_ROOT ?= $(HOME)/.pyenv
versions = $(foreach v,$(1),python$(v) $(wildcard $(PYENV_ROOT)/versions/$(v)*/bin/python))
CANDIDATES := $(PYTHON) $(call versions,3.11 3.10 3.9) python3 python $(call versions,3.13 3.12)
SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 13))
BIN := .venv/bin
STAMP := .venv/.installed
WORKERS := -n 2 --dist worksteal
EXTRAS := test,training,tensorflow-privacy,datasets,docs

export TF_CPP_MIN_LOG_LEVEL ?= 3
# pytest keeps the test modules that it has rewritten, which halves later collections.
unexport PYTHONDONTWRITEBYTECODE

train: $(STAMP)
	$(BIN)/python -m training.mnist $(ARGS)

# Types and the site are checked while the tests run; make names each that fails.
test: $(STAMP)
	@$(MAKE) --no-print-directory --keep-going --jobs=3 lint site suite

suite: $(STAMP)
	$(BIN)/python -m pytest $(WORKERS) $(ARGS)

site: $(STAMP)
	$(BIN)/python -m docs.website

# Runs every case of each class; `make test` runs representatives. ARGS="-m 'more and
# not slow'" runs only the cases that `make test` leaves out.
test-all: $(STAMP)
	$(BIN)/python -m pytest -m 'not slow' $(WORKERS) --durations=100 $(ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(WORKERS) $(ARGS)

# Tests what a GPU computes; a line names the GPUs that TensorFlow sees, then one for
# each test. Without a GPU every test is skipped.
test-gpu: $(STAMP)
	$(BIN)/python -c "import tensorflow as tf; print('GPUs:', tf.config.list_physical_devices('GPU'))"
	$(BIN)/python -m pytest -v -rs tests/keras/test_gpu.py $(ARGS)

# ARGS may be `all`, `newest`, `--allow-missing`, or name environments; see
# tests/matrix.py.
test-matrix: $(STAMP)
	$(BIN)/python tests/matrix.py $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python -m docs.website $(ARGS)

tour: $(STAMP)
	$(BIN)/python -m docs.run_tour $(ARGS)

# ARGS may name notebooks; with --small they run on small data, and nothing is stored.
examples: $(STAMP)
	$(BIN)/python -m docs.run_examples $(ARGS)

# Without --no-compile pip compiles all modules, of which Python loads only a few.
$(STAMP): setup.py
	@python=; for candidate in $(CANDIDATES); do \
	  if $$candidate -c '$(SUITABLE)' >/dev/null 2>&1; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "tfcactus needs Python 3.9 to 3.13 with its venv module, and none was found: install python3.11 and python3.11-venv, or run make PYTHON=/path/to/python3.11." >&2; \
	  exit 1; \
	fi; \
	echo "Installing tfcactus into .venv with $$($$python --version)"; \
	rm -rf .venv; \
	$$python -m venv .venv || { \
	  echo "The venv module of $$python does not work: install it (on Debian: apt-get install python3-venv)." >&2; \
	  exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e '.[$(EXTRAS)]'
	@touch $(STAMP)

clean:
	rm -rf .venv .venvs build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
