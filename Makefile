# Two commands from a fresh clone: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
FUZZ_SECONDS ?= 1200

.PHONY: demo test quick fuzz lint bench docs clean

demo: $(VENV)/.demo
	@$(BIN)/nudgevec demo

test: $(VENV)/.test lint
	NUDGEVEC_PROPERTY_TESTS=full $(BIN)/python -m pytest -q -n 2 --dist worksteal

quick: $(VENV)/.test  ## the same tests with fewer generated problems
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

fuzz: $(VENV)/.test  ## damaged labels, files and answers of servers; FUZZ_SECONDS for each kind
	NUDGEVEC_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -q tests/test_fuzz_*.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## times and memory beside the peers, about an hour
	$(BIN)/python benchmarks/cpu.py docs/results/benchmarks-cpu.md

docs: $(VENV)/.docs  ## redraw the pictures of the README
	$(BIN)/python scripts/draw_curve.py docs/curve.png

# One environment; each purpose adds what it needs and leaves a stamp.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	@echo "Setting up $(VENV) (once) ..."
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[static]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	# torch by itself first: this exact version has a small CPU build, a range would take the largest one.
	$(BIN)/pip install -q --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(BIN)/pip install -q --disable-pip-version-check -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
