# Everything a fresh machine with Python >= 3.11 and make needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help install simulate test lint clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## virtual environment with everything, in .venv

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON) is older than Python 3.11; use make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

simulate: install ## the default experiment: FedDecomp on scikit-learn's digits, 10 clients
	$(BIN)/fedpfl run

lint: install ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## lint, then the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

clean: ## remove the virtual environment
	rm -rf $(VENV)
