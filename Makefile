# make demo           set everything up, train two small translators, see them translate
# make test           set everything up and run the tests
# make test-all       the tests with coverage, the long tests, and a sample of injected faults
# make test-portable  the unit and integration tests under other instruction sets, threads, locales
# make coverage       the tests with line and branch coverage
# make lint           ruff, mypy, import-linter
# make bench          run the attention, training, prepare and graph benchmarks (an hour)
# make clean          remove .venv, build/, caches and runs/demo
PYTHON ?= python3
# How many test files run at a time.
WORKERS ?= 2
BIN := .venv/bin
READY := .venv/ready

.PHONY: help demo test test-all test-portable coverage lint bench clean
help:
	@sed -n 's/^# make/make/p' Makefile

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/edgewise demo

# A test file runs in one process, with one thread unless the file sets another number; the slowest
# files start first (tests/conftest.py).
PYTEST := OMP_NUM_THREADS=1 PYTHONUTF8=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile \
	--no-loadscope-reorder --durations 20
# Unit and integration tests check the shapes in signatures, through an import hook.
HOOK := --jaxtyping-packages=edgewise,beartype.beartype

# Both parts run, even if the first one fails. $(1): further marks; $(2): environment variables.
run_tests = status=0; \
$(2) $(PYTEST) $(HOOK) -m 'not unhooked and $(1)' tests/unit tests/integration || status=1; \
$(2) $(PYTEST) -m 'unhooked and $(1)' || status=1

test: $(READY) lint
	@$(call run_tests,not long); exit $$status

# Every process that a test starts is measured, with the test as its context.
COVERAGE := $(CURDIR)/build/coverage
MEASURED := COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml COVERAGE_FILE=$(COVERAGE)/data

coverage: $(READY)
	@rm -rf $(COVERAGE) && mkdir -p $(COVERAGE)
	@$(call run_tests,not long,$(MEASURED)); \
	$(BIN)/coverage combine --quiet --data-file $(COVERAGE)/data $(COVERAGE) || status=1; \
	$(BIN)/coverage report --data-file $(COVERAGE)/data --show-missing --skip-covered || status=1; \
	exit $$status

test-all: $(READY) lint
	@$(MAKE) --no-print-directory coverage; measured=$$?; \
	$(call run_tests,long); \
	$(BIN)/python tests/inject_faults.py --sample 6 || status=1; \
	exit $$((measured || status))

test-portable: $(READY)
	$(BIN)/python tests/run_portable.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python benchmarks/bench_attention.py
	$(BIN)/python benchmarks/bench_training.py
	$(BIN)/python benchmarks/bench_prepare.py
	$(BIN)/python benchmarks/bench_graph.py

clean:
	rm -rf .venv build dist runs/demo .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache src/*.egg-info
