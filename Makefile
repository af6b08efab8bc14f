# `make train` and `make test` are the two commands; both install what they
# need into .venv first.

.PHONY: train test test-slow lint clean
.DEFAULT_GOAL := test

CANDIDATES := $(PYTHON) python3.11 python3.10 python3.9 python3 python
SUITABLE := import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 11))
BIN := .venv/bin
STAMP := .venv/.installed

export TF_CPP_MIN_LOG_LEVEL ?= 3

train: $(STAMP)
	$(BIN)/python -m training.mnist $(ARGS)

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .

$(STAMP): setup.py
	@python=; for candidate in $(CANDIDATES); do \
	  if $$candidate -c '$(SUITABLE)' >/dev/null 2>&1; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "tfcactus needs Python 3.9, 3.10 or 3.11 (TensorFlow Privacy supports no other), and none was found: install python3.11 with its venv module, or run make PYTHON=/path/to/python3.11." >&2; \
	  exit 1; \
	fi; \
	echo "Installing tfcactus into .venv with $$($$python --version)"; \
	rm -rf .venv; \
	$$python -m venv .venv || { \
	  echo "The venv module of $$python does not work: install it (on Debian: apt-get install python3-venv)." >&2; \
	  exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $(STAMP)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
