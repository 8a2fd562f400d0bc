# `make run` serves, `make test` checks everything. Both need Python >= 3.11 and make, and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000

.DEFAULT_GOAL := help
.PHONY: help run test format clean

help:
	@echo "make run     serve on http://127.0.0.1:$(PORT) (PORT=8080 for another port)"
	@echo "make test    check everything: format, lint, types, tests"
	@echo "make format  put the code into the one format"
	@echo "make clean   take away what make made here, except ./data"
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter of $(VENV), which is made on first use."

# The environment is made once, and brought up to date when what it is made of changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "abound needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

run: $(VENV)/.installed
	@echo "Once it is ready, try in another terminal:"
	@echo
	@echo "  curl -s http://127.0.0.1:$(PORT)/learn -H 'Content-Type: application/json' -d '{\"text\": \"wheat prices rose\", \"labels\": [\"grain\"]}'"
	@echo "  curl -s http://127.0.0.1:$(PORT)/classify -H 'Content-Type: application/json' -d '{\"text\": \"the price of wheat\"}'"
	@echo "  $(BIN)/abound demo"
	@echo
	@exec $(BIN)/abound serve --port $(PORT)

test: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not long"

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find core service tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
