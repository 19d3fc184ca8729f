# `make help` lists the targets. Everything that a person or CI runs goes through them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(or $(shell command -v python3.11),$(shell command -v python3),python3.11)
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
# The stamp is named by what was installed: a changed lock or pyproject.toml sets up again, anything else costs nothing.
STAMP  := $(VENV)/.setup-$(shell cat requirements.lock pyproject.toml | sha256sum | cut -c1-16)

.PHONY: help setup demo test soak frameworks check format bench bench-detection bench-planner compose-check docs clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16
	@echo
	@echo 'ARGS="..." is handed on: make demo ARGS="--headless --kill 3@15", make test ARGS="-k planner"'

setup: $(STAMP) ## Make .venv (Python 3.11), install requirements.lock and this tree (editable); quick when nothing changed

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is not on the PATH; install Python 3.11 or name it: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "make: $(PYTHON) is not Python 3.11, which requirements.lock is made for" >&2; exit 2; }
	@echo "Setting up $(VENV) (a few minutes the first time: it installs PyTorch)"
	@[ -x $(BIN)/python ] && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.setup-*
	@touch $@

demo: $(STAMP) ## Train a small LLaMA-style model on 8 workers, kill one in mid-iteration, watch the other seven go on
	$(BIN)/resihp demo $(ARGS)

test: $(STAMP) ## Run the tests (real nats-server, PostgreSQL and worker processes), all but the minutes-long ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not soak" --max-suite-reruns 3 --rerun-show-tracebacks $(ARGS)

soak: $(STAMP) ## Run the minutes-long tests: whole days of operation, many changes of plan, loss of nodes and of the control plane
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak $(ARGS)

frameworks: $(STAMP) ## Run every attach example on four real ranks, DeepSpeed and Megatron-core included (own environment: .venv-frameworks)
	@cmp -s requirements-frameworks.lock .venv-frameworks/installed.lock || { \
	  $(PYTHON) -m venv --clear .venv-frameworks; \
	  $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(.venv-frameworks/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"; \
	  .venv-frameworks/bin/python -m pip install --disable-pip-version-check --quiet --no-deps $$(grep -E '^(setuptools|wheel)==' requirements-frameworks.lock); \
	  .venv-frameworks/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --requirement requirements-frameworks.lock; \
	  cp requirements-frameworks.lock .venv-frameworks/installed.lock; }
	PATH="$$PATH:$(CURDIR)/.venv-frameworks/bin" RESIHP_FRAMEWORKS_PYTHON=$(CURDIR)/.venv-frameworks/bin/python OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak --max-suite-reruns 2 --rerun-show-tracebacks tests/e2e/cli/test_attached_frameworks.py $(ARGS)

check: $(STAMP) ## ruff, ruff format, mypy strict, import rules, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir .import_linter_cache
	$(BIN)/codespell

format: $(STAMP) ## Apply ruff's fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Measure recovery, changes, control-plane loss, overhead, prediction, plain PyTorch; writes benchmarks/results/ (about 45 minutes)
	$(BIN)/python -m benchmarks $(ARGS)

bench-planner: $(STAMP) ## Planner against other policies, planning time, batch slicing; writes benchmarks/results/planner.md
	$(BIN)/python -m benchmarks.planner $(ARGS)

bench-detection: $(STAMP) ## Measure detection of slow devices; RESIHP_DATA_DIR names the folder of real traces, if there is one
	$(BIN)/python -m benchmarks.detection $(ARGS)

compose-check: $(STAMP) ## Run docker-compose.yml for real: build, train over two agents, kill a worker, restart every service, read the history
	$(BIN)/python -m scripts.compose_check $(ARGS)

docs: ## Build docs/ as a site in build/site, with every link checked (own environment: .venv-docs)
	@[ -x .venv-docs/bin/mkdocs ] && cmp -s requirements-docs.lock .venv-docs/installed.lock || { $(PYTHON) -m venv --clear .venv-docs && .venv-docs/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --requirement requirements-docs.lock && cp requirements-docs.lock .venv-docs/installed.lock; }
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet $(ARGS)
	@echo "build/site/index.html"

clean: ## Remove .venv, caches, builds and run folders
	rm -rf $(VENV) .venv-docs .venv-frameworks .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist .resihp
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
