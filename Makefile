# make demo | test | check | bench | clean
# The package index is pip's own: set PIP_INDEX_URL / PIP_EXTRA_INDEX_URL to choose another
# (for CPU wheels of torch see https://pytorch.org/get-started/locally/).

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DEMO_OUT ?= runs/demo
BENCH_OPTIONS ?=
# Two test workers of one thread each: the suite is sized for two cores.
PYTEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test check bench clean install

help:
	@echo "make demo    train the same encoder with several position encodings, write the report"
	@echo "make test    lint, types, import contracts and the whole suite"
	@echo "make check   lint, types and import contracts only"
	@echo "make bench   benchmarks of operator and encoder (BENCH_OPTIONS=--compile for all)"
	@echo "make clean   remove what the other targets made"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/ropewalk compare --output $(DEMO_OUT) --overwrite

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) -m "not slow and not gpu"

# torchtune's dependencies are of no use here: one module of it is read, without importing it.
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps torchtune
	$(BIN)/python benchmarks/bench_operator.py $(BENCH_OPTIONS) --json runs/bench.json --page runs/bench.md

clean:
	rm -rf .venv build dist runs src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
