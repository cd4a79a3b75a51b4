# Everything runs in .venv, made from pyproject.toml and constraints.txt.
#   make quickstart   a corpus, a small model, a report; about two minutes
#   make install      the package and what it needs, into .venv
#   make test         the tests; those that need Beam, TFDS, notebooks or a browser skip
#   make test-all     these, too: it installs what they need; make test-slow: the long ones
#   make test-numeric   those of floating-point results; make test-portable: as other processors
#                     compute them
#   make test-compiled   the program that a GPU runs, compiled without one; Linux, 0.6 GB more;
#                     make test-compiled-slow: for more machines and options
#   make test-newest  with the newest releases of all that it needs; Python 3.12 or newer
#   make reseal       write the configs of results/ and models/ as this version does
#   make wheel        a wheel and an sdist in dist/; make test-wheel: installed and used elsewhere
#   make docs         the documentation as pages in site/; make notebooks: run them and store the outputs;
#                     make api: write docs/api/ from the docstrings
#   make gpu          measurements on a GPU, 12 minutes a call; it needs jax[cuda12] or [cuda13]
#   make gpu-many     checks and rates of several GPUs of one machine, 10 minutes
#   make test-gpu     the same in small on a CPU, with no more installed than a GPU's machine has
#   make check        what CI checks: lint, types and tests

PYTHON ?= python3
BIN := .venv/bin
# Python compiles what is imported, when it is; pip would compile all, most of which never is.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
INSTALL := $(BIN)/python $(PIP)
# Many containers set it: then each start, of which the tests have hundreds, would compile all again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart install test test-all test-slow test-numeric test-portable test-compiled \
  test-compiled-slow test-newest gpu gpu-many test-gpu reseal wheel test-wheel docs api notebooks lint types check \
  clean

quickstart: .venv/ready
	$(BIN)/mlstm-jax quickstart $(OPTIONS)

install: .venv/ready

test: .venv/ready-test
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-all: .venv/ready-test-all
	$(BIN)/python -m pytest -n 2 --dist loadfile

# With programs that are optimized as a user's are: the other tests save that time. The numeric ones,
# too, since optimization changes how numbers are rounded.
test-slow: .venv/ready-test-all
	XLA_FLAGS= $(BIN)/python -m pytest -m "slow or numeric" -n 2 --dist worksteal tests

NUMERIC := $(BIN)/python -m pytest -q -m "numeric and not slow" --durations=3 -n 2 --dist loadfile
test-numeric: .venv/ready-test
	$(NUMERIC)

# The instruction sets below this processor's own, which `make test` uses. Those that this processor
# lacks change nothing. With F16C missing, as in SSE4_2, fp16 is skipped.
ISAS ?= SSE4_2 AVX2
test-portable: .venv/ready-test
	set -e; for isa in $(ISAS); do MLSTM_JAX_TEST_ISA=$$isa $(NUMERIC); done

# In an environment of its own: beside it, JAX without GPUs must be told that there are none. All but
# the compiler is that of .venv.
test-compiled: .venv-compiled/ready
	.venv-compiled/bin/python -m pytest -q tests/test_gpu_program.py

# The same for more machines and options.
test-compiled-slow: .venv-compiled/ready
	.venv-compiled/bin/python -m pytest -q -n 2 -m slow -k gpu_program tests/test_gpu_program.py \
	  tests/test_benchmarks.py

test-newest:
	.ci/test-newest

# TEXT is a file to train on; what is in OUT already is not measured again.
OUT ?= gpu_results
gpu:
	$(PYTHON) benchmarks/gpu.py --out "$(OUT)" $(if $(TEXT),--text "$(TEXT)")
	$(PYTHON) benchmarks/gpu_report.py "$(OUT)"

gpu-many:
	$(PYTHON) benchmarks/gpu_many.py

test-gpu:
	.ci/test-gpu

reseal: .venv/ready
	$(BIN)/python results/reseal.py

# The wheel is made from the sdist, with the tools of .venv: nothing is downloaded.
wheel: .venv/ready-dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation

# Those of constraints.txt.
PYTHONS ?= 3.11 3.12 3.13
test-wheel: wheel
	.ci/test-wheel $(BIN)/python $(PYTHONS)

docs: .venv/ready-docs
	$(BIN)/python -m nbconvert --log-level WARN --execute --to markdown --output-dir docs/notebooks notebooks/*.ipynb
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "written: site/index.html; for its search, python -m http.server -d site"

# tests/test_docs.py compares these pages with the code.
api: .venv/ready-docs
	$(BIN)/python docs/write_api.py

notebooks: .venv/ready-test-all
	$(BIN)/python notebooks/store.py

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready-dev
	$(BIN)/mypy

check: lint types test-all

clean:
	rm -rf .venv .venv-compiled .venv-newest .pytest_cache .mypy_cache .ruff_cache \
	  dist site docs/notebooks

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, but $(PYTHON) is" \
	    "$$($(PYTHON) -V 2>&1); try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@echo "installing mlstm_jax and what it needs into .venv: about 900 MB"
	$(INSTALL) -e '.[view]'
	@echo "installed: $$(du -sm .venv | cut -f1) MB in .venv"
	@touch $@

.venv/ready-test: .venv/ready
	@echo "installing what the tests need: about 320 MB more"
	$(INSTALL) -e '.[test]'
	@touch $@

.venv/ready-test-all: .venv/ready
	@echo "installing what every test needs, Beam and TFDS among it: about 980 MB more"
	$(INSTALL) -e '.[test-all]'
	@touch $@

.venv/ready-dev: .venv/ready
	@echo "installing what the tests need, linters and build tools: about 430 MB more"
	$(INSTALL) -e '.[dev]'
	@touch $@

.venv/ready-docs: .venv/ready
	@echo "installing MkDocs, its plugins and what the notebooks need: about 350 MB more"
	$(INSTALL) -e '.[docs]'
	@touch $@

# All of these with one call of pip, which takes two thirds of the time of three.
.venv/ready-all: .venv/ready
	@echo "installing all of these: about 1.1 GB more"
	$(INSTALL) -e '.[test-all,dev,docs]'
	@touch .venv/ready-test .venv/ready-test-all .venv/ready-dev .venv/ready-docs $@

SITE := import sysconfig; print(sysconfig.get_path("purelib"))
.venv-compiled/ready: .venv/ready-test
	$(BIN)/python -m venv .venv-compiled
	$(BIN)/python -c '$(SITE)' > "$$(.venv-compiled/bin/python -c '$(SITE)')/venv.pth"
	.venv-compiled/bin/python $(PIP) -e '.[test,gpu-compile]'
	@touch $@
