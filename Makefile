# make demo | test | check | bench | sanitize | clean
# The package index is pip's own: set PIP_INDEX_URL / PIP_EXTRA_INDEX_URL to choose another
# (for CPU wheels of torch see https://pytorch.org/get-started/locally/).

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DEMO_OUT ?= runs/demo
BENCH_OPTIONS ?=
CSRC := setup.py $(wildcard src/ropewalk/rotary/kernels/csrc/*)
# Two test workers of one thread each: the suite is sized for two cores.
PYTEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test check bench sanitize clean install

help:
	@echo "make demo    train the same encoder with several position encodings, write the report"
	@echo "make test    lint, types, import contracts and the whole suite"
	@echo "make check   lint, types and import contracts only"
	@echo "make bench   benchmarks of operator and encoder (BENCH_OPTIONS=--compile for all)"
	@echo "make sanitize  tests of the compiled kernel under AddressSanitizer and UBSan (gcc)"
	@echo "make clean   remove what the other targets made"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(CSRC)
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

# The package is copied, so that the sanitized extension lies in it without touching the real one.
# Python is not instrumented: the runtime is preloaded, and its own leaks are not ours. Interceptors
# of C++ exceptions need libstdc++ to be there from the start.
SANITIZED := build/sanitized
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g -O1

sanitize: $(STAMP)
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	cp -r src/ropewalk $(SANITIZED)/ropewalk
	rm -f $(SANITIZED)/ropewalk/rotary/kernels/_native*
	CC=gcc CFLAGS="$(SANITIZE)" LDFLAGS="$(SANITIZE)" $(abspath $(BIN))/python setup.py --quiet build_ext \
		--force --build-temp $(SANITIZED)/temp --build-lib $(SANITIZED)
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		PYTHONPATH=$(SANITIZED) OMP_NUM_THREADS=2 ROPEWALK_SANITIZED=1 \
		$(BIN)/python -m pytest -m "not slow" \
		$(filter-out %_build.py,$(wildcard tests/rotary/test_native*.py tests/rotary/test_kernels*.py))

clean:
	rm -rf .venv build dist runs src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f src/ropewalk/rotary/kernels/_native*.so
