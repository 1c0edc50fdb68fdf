# Everything a person does with a checkout. Each target prepares what it needs; a second call is fast,
# because stamp files in the virtual environment remember what has been installed.
#
#   PYTHON=...      the Python of .venv (default python3; 3.11 or newer)
#   PYTHON312=...   a Python 3.12 for the second test run (default: looked for; empty switches it off)
#   WORKERS=...     test processes (default 2)
#   ARGS=...        further arguments of `make demo` (e.g. ARGS="--precision bfloat16") or pytest

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=
SELECT ?=
VENV := .venv
VENV312 := .venv-3.12
VENVTF := .venv-tensorflow
# The version that .venv has or will have, and the second Python unless .venv is itself a 3.12.
# (`=`: looked up only by the targets that use it.)
PYTHON_VERSION = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
PYTHON312 ?= $(if $(filter 3.12,$(PYTHON_VERSION)),,$(shell scripts/find-python 3.12))

# Sources, pages and reports are UTF-8, whatever the locale of who runs the tests.
export PYTHONUTF8 := 1

PIP_INSTALL := -m pip install --disable-pip-version-check --quiet
# Python 3.11 tests the oldest supported versions of some libraries, Python 3.12 the newest.
OLDEST = $(if $(filter 3.11,$(PYTHON_VERSION)),--constraint scripts/oldest-3.11.txt)
PYTEST := -m pytest -n $(WORKERS)
# What test-newest leaves out and test-all does not: it has no JAX in it, it
# is about what is refused or about numbers that a painting decides, or it is what a person runs once.
SAME := advising benchmarks cli comparing cost explaining graph measuring numerics onnx ops precision reporting samples \
	tensorflow text test_words.py \
	devices/test_assumed.py devices/test_float32_math.py devices/test_half_type.py devices/test_mesh.py \
	devices/test_specifications.py devices/test_table.py policy/test_environment.py policy/test_policy.py \
	policy/test_policy_file.py policy/test_ranges_view.py profiling/test_profile_view.py \
	test_commands_of_docs.py test_docker.py test_docs.py test_examples.py test_examples_resume.py \
	test_files.py test_identities.py test_imports.py test_invariants.py test_traps.py \
	test_traps_of_operations.py jaxpr/test_instead.py jaxpr/test_trilinear.py \
	adapters/test_optax_refusals.py adapters/test_keras_applications.py

# Of the examples, one for each framework and the loop of `generate` run on both.
SAME_CASES := test_a_base_is_taken_up_and_one_that_is_none_refused \
	$(foreach each,diffusion fine_tune resnet50,test_trains_writes_and_refuses_another_precision[$(each)])

SKIP ?= $(SAME:%=--ignore=tests/%) $(SAME_CASES:%=--deselect='tests/test_examples_frameworks.py::%')

.DEFAULT_GOAL := help
.PHONY: help demo test test-newest test-all test-tensorflow lint lint-docker format types docs bench clean
.DELETE_ON_ERROR:

help:  ## show this list
	@echo "duotone: automatic mixed precision for JAX"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed-demo  ## train on real handwritten digits in float32, float16 and bfloat16
	@$(VENV)/bin/duotone demo $(ARGS)

test: $(VENV)/.installed-dev  ## run the tests
	@$(VENV)/bin/python -c 'import jax, sys; print("== Python %d.%d, JAX" % sys.version_info[:2], jax.__version__)'
	$(VENV)/bin/python $(PYTEST) $(SELECT) $(ARGS)

# Nothing to do where .venv is itself a 3.12 or no other was found: that is said, and no error.
test-newest:  ## run the tests that depend on JAX's version on Python 3.12 with the newest JAX, where it is there
	@second='$(PYTHON312)'; \
	if [ -z "$$second" ]; then \
		echo "== no second run: $(VENV) is Python $(PYTHON_VERSION), and no other Python 3.12 was found"; \
	else \
		$(MAKE) --no-print-directory --silent $(VENV312)/.installed-dev PYTHON312="$$second" && \
		$(VENV312)/bin/python -c 'import jax, sys; print("== Python %d.%d, JAX" % sys.version_info[:2], jax.__version__)' && \
		$(VENV312)/bin/python $(PYTEST) $(SELECT) $(SKIP) $(ARGS); \
	fi

test-all:  ## run all tests on both, the slow ones too
	@$(MAKE) --no-print-directory test test-newest SELECT='-m ""' SKIP=

test-tensorflow: $(VENVTF)/.installed-tensorflow  ## run rewritten graphs and exported functions in TensorFlow (optional: installs tensorflow-cpu, 2 GB)
	DUOTONE_TEST_TENSORFLOW=1 KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 \
		$(VENVTF)/bin/python -m pytest tests/tensorflow/test_in_tensorflow.py tests/tensorflow/test_hostile.py tests/tensorflow/test_live.py \
		tests/tensorflow/test_same_as_original.py \
		tests/tensorflow/test_calibration.py \
		tests/tensorflow/test_compare_in_tensorflow.py tests/exporting/test_saved_model.py $(ARGS)
	DUOTONE_TEST_TENSORFLOW=1 KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 \
		$(VENVTF)/bin/python -m pytest tests/adapters/tensorflow_live $(ARGS)

lint: $(VENV)/.installed-dev  ## check style and imports with ruff
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(VENV)/.installed-dev  ## rewrite the files in ruff's format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

lint-docker: $(VENV)/.installed-docs  ## check the Dockerfiles with hadolint
	$(VENV)/bin/hadolint docker/Dockerfile docker/Dockerfile.custom

types: $(VENV)/.installed-dev  ## check types with pyright
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

docs: $(VENV)/.installed-docs  ## build the documentation into site/
	$(VENV)/bin/mkdocs build --strict
	@$(VENV)/bin/python scripts/check_reference.py site/reference/index.html

bench: $(VENV)/.installed-dev  ## run every benchmark; each writes its result, README.md and docs/results.md show them
	@for file in benchmarks/[a-z]*.py; do \
		name=$$(basename "$$file" .py); echo "== $$name"; venv=$(VENV); \
		case "$$name" in tensorflow_*) venv=$(VENVTF) ;; esac; \
		if [ ! -e "$$venv/bin/python" ]; then echo "left out: make test-tensorflow installs TensorFlow"; continue; fi; \
		"$$venv/bin/python" -m "benchmarks.$$name" || exit 1; \
	done
	@$(VENV)/bin/python scripts/readme_results.py
	@$(VENV)/bin/python scripts/results_page.py

clean:  ## remove the virtual environments, caches and build outputs
	rm -rf $(VENV) $(VENV312) $(VENVTF) site dist build .pytest_cache .ruff_cache .hypothesis

# Installed once per change of pyproject.toml. Editable: the code itself needs no new installation.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "duotone needs Python 3.11 or newer, and '$(PYTHON)' is not: call make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); echo "Python's venv module is missing: on Debian and Ubuntu, apt install python3-venv"; exit 1; }

$(VENV)/.installed-%: pyproject.toml scripts/oldest-3.11.txt | $(VENV)/bin/python
	@echo "installing duotone[$*] into $(VENV)"
	@$(VENV)/bin/python $(PIP_INSTALL) --editable '.[$*]' $(OLDEST)
	@touch $@

$(VENV312)/bin/python:
	@echo "making $(VENV312)"
	@$(PYTHON312) -m venv $(VENV312)

$(VENV312)/.installed-%: pyproject.toml | $(VENV312)/bin/python
	@echo "installing duotone[$*] into $(VENV312)"
	@$(VENV312)/bin/python $(PIP_INSTALL) --editable '.[$*]'
	@touch $@

# Beside .venv and not in it: no other test may come to need TensorFlow. What JAX 0.12 writes for open
# sizes, TensorFlow 2.21 does not read.
$(VENVTF)/.installed-tensorflow: pyproject.toml
	@echo "installing tensorflow-cpu into $(VENVTF)"
	@$(PYTHON) -m venv $(VENVTF)
	@$(VENVTF)/bin/python $(PIP_INSTALL) --editable '.[tensorboard]' 'tensorflow-cpu>=2.21' 'jax<0.11' pytest
	@touch $@
