# Everything runs in .venv, made from pyproject.toml and constraints.txt.
#   make quickstart   a corpus, a small model, a report; about two minutes
#   make test         the tests; make test-slow: the long ones
#   make check        what CI checks: lint, types and tests

PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart install test test-slow lint types check clean

quickstart: .venv/ready
	$(BIN)/python train.py

install: .venv/ready

test: .venv/ready-test
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: .venv/ready-test
	$(BIN)/python -m pytest -m slow -s

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready-dev
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, but $(PYTHON) is" \
	    "$$($(PYTHON) -V 2>&1); try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/ready-test: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

.venv/ready-dev: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
