# `make run` serves, `make test` checks. Both need Python >= 3.11 and make, and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
BUILDER ?= docker
BASE ?=
WORKERS ?= 4
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run check test test-lowest test-newest long docs format hooks lock image clean

help:
	@echo "make run     serve on http://127.0.0.1:$(PORT) (PORT=8080 for another port)"
	@echo "make check   the quick part of the checks: format, lint, types, imports, licences, prose"
	@echo "make test    format, lint, types, all tests but the long ones (WORKERS=2 at a time; 4 unless told)"
	@echo "make test-lowest  the quick tests with the lowest versions of all dependencies that pyproject.toml allows"
	@echo "make test-newest  the quick tests with the newest"
	@echo "make long    the tests that take minutes each, and random tests with all of their examples"
	@echo "             ARGS=\"--reverse\" gives pytest more options, with test and with long"
	@echo "make docs    build the site of the pages in docs/: build/site/index.html"
	@echo "make format  put the code into the one format"
	@echo "make hooks   let git run make check before each commit"
	@echo "make lock    write docker/requirements.txt anew: the hashes of what the image installs"
	@echo "make image   build the image abound (BUILDER=buildah, BASE=... for another base)"
	@echo "make clean   take away what make made here, except ./data"
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter of $(VENV), which is made on first use."

# The environment is made once, and brought up to date when what it is made of changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "abound needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

run: $(VENV)/.installed
	@echo "Once it is ready, open http://127.0.0.1:$(PORT) in a browser, or try in another terminal:"
	@echo
	@echo "  $(BIN)/abound models create tickets --url http://127.0.0.1:$(PORT) --set update=sls"
	@echo "  $(BIN)/abound learn examples/data/tickets.csv --url http://127.0.0.1:$(PORT) --model tickets --text subject --label queue --ignore '*'"
	@echo "  curl localhost:$(PORT)/models/tickets/classify --json '{\"text\": \"this hose leaks, too\", \"k\": 1}'"
	@echo "  curl localhost:$(PORT)/models/tickets/learn --json '{\"text\": \"my garden hose leaks\", \"labels\": [\"warranty\"]}'"
	@echo "  curl localhost:$(PORT)/models/tickets/classify --json '{\"text\": \"this hose leaks, too\", \"k\": 1}'"
	@echo
	@exec $(BIN)/abound serve --port $(PORT)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_imports.py tests/test_licences.py tests/documents/test_prose.py

# Kernels and tests are compiled once, before several processes want them at the same time; types are checked meanwhile.
# Tests that start programs run in a stage of their own, so that a failure by load is told from a defect. pytest ends with
# 5 if ARGS leave no test in a stage. Bytecode is kept even where the environment says otherwise: the tests start hundreds
# of processes.
test long test-lowest test-newest: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(BIN)/mypy & types=$$!; failed=0; \
	$(BIN)/python docker/kernels.py && $(BIN)/pytest --collect-only -qq $(ARGS) > /dev/null; \
	wait $$types || { echo "mypy has found mistakes: see above" >&2; exit 1; }; \
	for stage in "not processes" "processes"; do \
		$(BIN)/pytest -m "not long and $$stage" --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder \
			--durations 10 $(ARGS); code=$$?; \
		[ $$code -eq 0 ] || [ $$code -eq 5 ] || failed=$$code; \
	done; exit $$failed

# Tests that between them use every library that the service is built on.
QUICK := \
	tests/contracts/test_openapi.py \
	tests/core/methods/test_contract.py \
	tests/core/methods/neighbors/test_vector_search.py \
	tests/core/model/test_live_model.py \
	tests/core/instances/test_text_analyzer.py \
	tests/scenarios/test_cluster.py \
	tests/artifacts/test_artifact_store.py \
	tests/cli/test_cli.py \
	tests/cli/test_jobs.py \
	tests/client/test_against_service.py \
	tests/api/test_protocol.py \
	tests/processes/test_embedded_store.py \
	tests/client/test_estimator.py \
	tests/datasets/test_files.py \
	tests/jobs/test_fit.py \
	tests/api/test_datasets.py \
	tests/api/test_errors.py \
	tests/api/test_health.py \
	tests/api/test_learn.py \
	tests/api/test_page.py \
	tests/api/test_rates.py \
	tests/log/test_stream.py \
	tests/test_logging.py \
	tests/benchmarks/test_reproduction.py \
	tests/history/test_segment.py \
	tests/test_settings.py \
	tests/simulation/test_keyspace.py

# A bound in pyproject.toml, as the constraint to its lowest version.
LOWEST := s/.*"\([a-z][a-z0-9-]*\)>=\([^,]*\),.*/\1==\2/p

$(VENV)-lowest/.installed $(VENV)-newest/.installed: $(VENV)-%/.installed: pyproject.toml
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	sed -n '$(if $(filter lowest,$*),$(LOWEST))' $< > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c $(@D)/constraints.txt -e '.[dev]'
	@touch $@

# Kernels that another version of numba compiled are kept apart from those that serve.
test-lowest test-newest: export NUMBA_CACHE_DIR = $(CURDIR)/$(<D)/kernels
test-lowest test-newest: test-%: $(VENV)-%/.installed
	$(<D)/bin/python docker/kernels.py
	$(<D)/bin/pytest -m "not long" --numprocesses $(WORKERS) --dist worksteal $(QUICK)

long: $(VENV)/.installed-dev
	$(BIN)/pytest -m "long or hypothesis" --hypothesis-profile thorough $(ARGS)

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

hooks:
	@hook="$$(git rev-parse --git-path hooks)/pre-commit"; \
	if [ -e "$$hook" ]; then echo "$$hook is there already" >&2; exit 1; fi; \
	mkdir -p "$$(dirname "$$hook")" && printf '#!/bin/sh\nexec make check\n' > "$$hook" && chmod +x "$$hook"
	@echo "git commit runs make check from now on; git commit --no-verify passes over it"

# The versions of constraints.txt with their hashes, of all that the image may have.
lock:
	$(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	UV_CUSTOM_COMPILE_COMMAND="make lock" build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 \
		--generate-hashes --annotation-style line --constraints constraints.txt \
		$(foreach extra,approximate arrow cluster embed mcp otel s3 sklearn,--extra $(extra)) \
		--output-file docker/requirements.txt pyproject.toml

# docker keeps the health check by itself; buildah and podman in this format only.
image: VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
image:
	$(BUILDER) build $(if $(filter buildah podman,$(BUILDER)),--format docker) $(if $(BASE),--build-arg BASE=$(BASE)) \
		--build-arg REVISION=$(shell git rev-parse HEAD) -f docker/Dockerfile -t abound -t abound:$(VERSION) .

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find core service tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
