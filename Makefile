# What a person calls. The set-up itself is tools/setup.sh, which does nothing when there is nothing to do.
# PYTHON=/path: `demo` proves in that interpreter, with its torch, and installs none;
# the others make .venv from it. ARGS="...": further arguments for pytest.

BIN := .venv/bin
# Processes that run tests: most of the time they wait for ranks.
JOBS ?= 3
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint format skill

help:
	@echo 'make demo       prove this machine with 4 ranks on the CPU'
	@echo 'make demo PYTHON=/path/to/python    the same with the torch of that interpreter, installing none'
	@echo 'make test       the tests, about 3 minutes; JOBS=1 in one process; ARGS="-k zip" goes to pytest'
	@echo 'make test-long  those that take minutes each'
	@echo 'make lint       ruff, mypy, import-linter, and whether the skill holds the present worker'
	@echo 'make format     ruff, with its safe corrections'
	@echo 'make skill      pack the worker for skills/build-infra, after a change of the sources'

demo:
	@tools/demo.sh

test:
	@tools/setup.sh dev
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadscope $(ARGS)

test-long:
	@tools/setup.sh dev
	@$(BIN)/python -m pytest -m long $(ARGS)

lint:
	@tools/setup.sh dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@[ -x $(BIN)/lint-imports ] || { echo 'lint: import-linter needs a .venv of Python 3.11 or newer' >&2; exit 1; }
	$(BIN)/lint-imports
	$(BIN)/python tools/skill_zip.py --check

skill:
	@tools/setup.sh dev
	$(BIN)/python tools/skill_zip.py

format:
	@tools/setup.sh dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
