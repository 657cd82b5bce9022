# Each target sets up .venv first, where constraints.txt or pyproject.toml changed since the last time.
#   TORCH_INDEX_URL   a package index to prefer for torch and torchvision (see README: CPU builds)
#   SEPAL_DATA        a directory with data sets, for the tests and benchmarks on them

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for python in python3.11 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
BIN := .venv/bin
STAMP := .venv/.setup

export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
CLIENTS ?= 3
export CLIENTS

.PHONY: help setup demo compose-demo test check style types packages schemas docs e2e clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 16
	@echo "  make -C tools, make -C referee: what we measure, and what compares methods"

setup: $(STAMP) ## make .venv and install the pinned versions

$(STAMP): constraints.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "setup: expected Python 3.11 or newer as python3.11 or python3, got $$(python3 --version 2>&1 || echo none)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@(began=$$(date +%s); while sleep 10; do echo "setup: installing packages, $$(du -sh .venv | cut -f1) after $$(($$(date +%s) - began)) s"; done) & beat=$$!; trap "kill $$beat" EXIT; \
	$(BIN)/python -m pip install --quiet -c constraints.txt $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL)) torch torchvision; \
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[simulation,dev]"
	@touch $@
	@echo "setup: done; source $(BIN)/activate, and sepal --help lists the commands"

demo: $(STAMP) ## FedPSE and four other methods on handwritten digits, 20 clients: about 2 minutes
	$(BIN)/python -m tools.demo

compose-demo: ## the same in containers, with TLS and node keys: CLIENTS=5 METHOD=fedavg make compose-demo
	COMPOSE="$(COMPOSE)" tools/compose_demo.sh

test: $(STAMP) ## run the tests but the end-to-end ones (two processes, one thread each); LONG=1: also the long ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not e2e$(if $(LONG),, and not long)" -n 2 --dist loadgroup

check: types docs packages style schemas ## ruff, mypy --strict, import-linter, hadolint, the schemas of Compose, Kubernetes and GitHub, docs, the list of packages, wheel and sdist

style: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

packages: $(STAMP)
	@$(MAKE) --no-print-directory -C tools sbom package

schemas: $(STAMP)
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml docker-compose.gpu.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/kubernetes-validate --strict --quiet $$(find deploy/kubernetes -name '*.yaml' ! -name kustomization.yaml)
	@if test -x $(BIN)/hadolint; then $(BIN)/hadolint Dockerfile && echo "hadolint: Dockerfile is fine"; \
		else echo "hadolint: skipped, there is no wheel for this machine"; fi
	@if $(COMPOSE) version >/dev/null 2>&1; then $(COMPOSE) config --quiet && \
		$(COMPOSE) -f docker-compose.yml -f docker-compose.gpu.yml config --quiet && echo "$(COMPOSE) config: fine"; \
		else echo "$(COMPOSE) config: skipped, Compose is not installed"; fi

docs: $(STAMP) ## build the documentation site into build/site; a dead link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# Two files at a time: they start many processes, and most wait for them. All others are not even imported.
e2e: $(STAMP) ## run the end-to-end tests: real processes; LONG=1: also the long ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "e2e$(if $(LONG),, and not long)" -n 2 --dist loadgroup --durations=15 \
		$$(grep -rlw --include='test_*.py' 'mark\.e2e' tests | sort)

clean: ## remove .venv and everything that tools leave; runs/ stays
	rm -rf .venv .venv-flower build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
