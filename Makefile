# `make run` and `make test` need Python >= 3.11 and nothing else: they make .venv first.
# PYTHON=... chooses the interpreter.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests start many processes, each of which would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run lint check test test-ranks clean

setup: $(READY)

# The stamp is written last, so an interrupted installation is done again from the start.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "fibration needs Python >= 3.11; found none. Name one: make PYTHON=/path/to/python3"; exit 1; }
	@echo "creating $(VENV) with $(PYTHON) (once; about a minute)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,triton]'
	@touch $@

run: setup
	@$(BIN)/fibration run fiberpo_domain --verify specs --out out

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache

# What finds most in a minute, for every change; `make test` is everything.
CHECKED := $(addprefix tests/,language compiler runtime trust_region laws/test_wrong.py laws/test_right.py \
	backends/test_golden.py backends/test_hard_inputs.py test_rooms.py test_slips.py) \
	$(addsuffix ::test_wrong_specs_are_refused,$(shell grep -l test_wrong_specs_are_refused tests/laws/*.py))

check: lint
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(CHECKED)

test: lint
	@$(BIN)/python -m pytest -n 2 --dist worksteal

# Training in processes of their own: everything of it, which `make test` does for two ranks.
test-ranks: setup
	@FIBRATION_ALL_TESTS=1 $(BIN)/python -m pytest -n 0 tests/processes

clean:
	rm -rf $(VENV) out build dist *.egg-info
