# make demo   set everything up, train two small translators, see them translate
# make test   set everything up and pass the tests
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: help demo test test-all lint bench clean
help:
	@sed -n 's/^# //p' Makefile

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/edgewise demo

# Shapes in signatures are checked by an import hook, except where it would hide what is tested.
HOOK := --jaxtyping-packages=edgewise,beartype.beartype

# Two files of tests at a time, each with one thread unless it says otherwise.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

test: $(READY) lint
	$(PYTEST) $(HOOK) -m 'not unhooked and not long'
	$(PYTEST) -m 'unhooked and not long'

test-all: $(READY) lint
	$(PYTEST) $(HOOK) -m 'not unhooked'
	$(PYTEST) -m unhooked

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The figures of benchmarks/results, anew: about an hour on two cores.
bench: $(READY)
	$(BIN)/python benchmarks/bench_attention.py
	$(BIN)/python benchmarks/bench_training.py
	$(BIN)/python benchmarks/bench_prepare.py
	$(BIN)/python benchmarks/bench_graph.py

clean:
	rm -rf .venv build dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
