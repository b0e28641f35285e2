# Everything a fresh machine with Python >= 3.11 and make needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help install simulate test test-faults lint mosquitto clean

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

mosquitto: ## the MQTT broker from Debian's or Ubuntu's packages, if it is missing and this is root
	@if PATH="$$PATH:/usr/sbin" command -v mosquitto >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		(apt-get install -y -q mosquitto || (apt-get update -q && apt-get install -y -q mosquitto)) >/dev/null; \
	else echo "mosquitto is not installed: the tests that need it are skipped (apt-get install mosquitto)"; fi

test: lint mosquitto ## lint, then the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

test-faults: install mosquitto ## kill parts of a running testbed; half an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults

clean: ## remove the virtual environment
	rm -rf $(VENV)
