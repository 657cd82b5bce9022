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

.PHONY: help setup demo compose-demo test check docs e2e test-arithmetic matrix-python bench gpu paper leaderboard defaults stability chaos chaos-quick load load-quick hosts fuzz mutants mutate flower flower-quick flower-next requirements sbom clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(STAMP) ## make .venv and install the pinned versions

$(STAMP): constraints.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "setup: expected Python 3.11 or newer as python3.11 or python3, got $$(python3 --version 2>&1 || echo none)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@(began=$$(date +%s); while sleep 10; do echo "setup: installing packages, $$(du -sh .venv | cut -f1) after $$(($$(date +%s) - began)) s"; done) & beat=$$!; trap "kill $$beat" EXIT; \
	$(BIN)/python -m pip install --quiet -c constraints.txt $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL)) torch torchvision; \
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[simulation,dev]"
	@touch $@
	@echo "setup: done; $(BIN)/sepal --help lists the commands"

demo: $(STAMP) ## FedPSE and four other methods on handwritten digits, 20 clients: about 2 minutes
	$(BIN)/python -m experiments.demo

compose-demo: ## the same in containers, with TLS and node keys: CLIENTS=5 METHOD=fedavg make compose-demo
	COMPOSE="$(COMPOSE)" experiments/compose_demo.sh

test: $(STAMP) ## run the tests but the end-to-end ones (two processes, one thread each)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not e2e" -n 2 --dist loadgroup

check: $(STAMP) docs sbom ## ruff, mypy --strict, import-linter, hadolint, the schemas of Compose and Kubernetes, docs, the list of packages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml docker-compose.gpu.yml
	$(BIN)/kubernetes-validate --strict --quiet $$(find deploy/kubernetes -name '*.yaml' ! -name kustomization.yaml)
	@if test -x $(BIN)/hadolint; then $(BIN)/hadolint Dockerfile && echo "hadolint: Dockerfile is fine"; \
		else echo "hadolint: skipped, there is no wheel for this machine"; fi
	@if $(COMPOSE) version >/dev/null 2>&1; then $(COMPOSE) config --quiet && \
		$(COMPOSE) -f docker-compose.yml -f docker-compose.gpu.yml config --quiet && echo "$(COMPOSE) config: fine"; \
		else echo "$(COMPOSE) config: skipped, Compose is not installed"; fi

docs: $(STAMP) ## build the documentation site into build/site; a dead link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

test-arithmetic: $(STAMP) ## the tests that train, once more with the arithmetic of a processor without AVX
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup \
		tests/test_golden.py tests/test_methods_common.py tests/experiments/test_calibrate.py tests/strategies tests/models

matrix-python: $(STAMP) ## the fast tests on Python 3.12 and 3.13, with the newest and the lowest versions: gigabytes
	$(BIN)/python -m experiments.pythons

e2e: $(STAMP) ## run the end-to-end tests: real processes (two files at a time: they mostly wait)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m e2e -n 2 --dist loadfile --durations=15

bench: $(STAMP) ## measure speed and memory
	$(BIN)/python -m experiments.bench

gpu: $(STAMP) ## try and measure everything on this machine's GPU, in nine minutes: docs/results/gpu.md
	@$(BIN)/python -m experiments.gpu

paper: $(STAMP) ## run a paper's tables: make paper NAME=fedpse (or dmpfl, subfedavg, pfedgate, pa3dfl, privacy)
	$(BIN)/python -m experiments.paper $(NAME)

leaderboard: $(STAMP) ## run what the leaderboard lacks for HOURS a block, then write its pages: make leaderboard BLOCKS="a b" HOURS=2
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.leaderboard --hours $(or $(HOURS),1) --jobs 2 $(if $(BLOCKS),--block $(BLOCKS))
	$(BIN)/python -m experiments.leaderboard --pages

defaults: $(STAMP) ## run every method with all its defaults on digits and HAR, and compare with fine-tuned FedAvg: hours
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.defaults

stability: $(STAMP) ## every method with its defaults under each arithmetic of this processor: seven hours; HOURS=1 for a part
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.stability --hours $(or $(HOURS),24)

chaos: $(STAMP) ## kill processes of 20 deployed runs at random, stop clients for a minute; RUNS=100 for more
	$(BIN)/python -m experiments.chaos --runs $(or $(RUNS),20) --stop 60

chaos-quick: $(STAMP) ## the same for 4 small runs: four minutes
	$(BIN)/python -m experiments.chaos --runs 4 --kills 1 --spread 2 --limit 400 \
		--kinds 'client process,answering process,server,superlink'

load: $(STAMP) ## 10, 100 and 1,000 light clients on one SuperLink
	$(BIN)/python -m experiments.load

load-quick: $(STAMP) ## 10 light clients for three rounds: half a minute
	$(BIN)/python -m experiments.load --counts 10 --rounds 3 --idle 2 --workers 2

hosts: $(STAMP) ## clients in network namespaces with limited links, a cut of two minutes; needs root
	$(BIN)/python -m experiments.hosts --cut 120

fuzz: $(STAMP) ## read a million damaged payloads, and a million uploads changed field by field
	$(BIN)/python -m tests.fuzz.wire --count 1000000
	$(BIN)/python -m tests.fuzz.structured --count 1000000

mutants: $(STAMP) ## check that each error in tests/mutants.py is noticed by its test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants

mutate: $(STAMP) ## mutate MODULE (default: the means) at every place, or at SAMPLE of them; list what no test notices
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[mutation]"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutate $(or $(MODULE),sepal/protocol/means.py) --sample $(or $(SAMPLE),0)

# A second environment: what .venv has, except Flower and what its release pins. So torch is not downloaded twice.
SECOND := .venv-flower
VERSION ?= $(shell sed -n 's/^flwr==//p' constraints-current.txt)
SUBSET := tests/sepal/engines tests/attacks tests/sepal/server tests/test_imports.py tests/e2e/test_deployment.py \
	tests/e2e/test_serving.py::test_only_the_fleet_api_listens_beyond_this_machine tests/e2e/test_refusals.py

# One deployed run of one method, one that is killed, TLS with keys, and who is refused: a minute or two.
QUICK := tests/test_imports.py tests/sepal/engines/test_node.py \
	'tests/e2e/test_deployment.py::test_a_deployment_over_grpc_gives_the_same_bits[fedpse-two]' \
	tests/e2e/test_deployment.py::test_a_server_killed_in_mid_run_and_started_again_changes_nothing \
	tests/e2e/test_serving.py::test_one_option_on_each_side_gives_tls_and_node_keys \
	tests/e2e/test_serving.py::test_only_the_fleet_api_listens_beyond_this_machine \
	tests/e2e/test_refusals.py::test_a_supernode_without_the_right_key_and_certificate_does_not_get_in \
	tests/e2e/test_refusals.py::test_an_unregistered_key_is_named
IN_SECOND := PATH="$(CURDIR)/$(SECOND)/bin:$$PATH" PYTHONPATH="$(CURDIR)" OMP_NUM_THREADS=1 $(SECOND)/bin/python

$(SECOND)/.flwr-$(VERSION): $(STAMP) constraints-current.txt
	rm -rf $(SECOND) && $(BIN)/python -m venv --without-pip $(SECOND)
	site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	theirs=$$($(SECOND)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "import site; site.addsitedir('$$site')" > $$theirs/shared.pth
	grep -vE '^(flwr|cryptography|uv|certifi)==' constraints-current.txt > $(SECOND)/constraints.txt
	$(SECOND)/bin/python -m pip install --quiet -c $(SECOND)/constraints.txt "flwr[simulation]==$(VERSION)"
	$(SECOND)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

flower: $(SECOND)/.flwr-$(VERSION) ## run engines, deployment and resume with another Flower: make flower VERSION=1.41.0
	$(IN_SECOND) -m pytest -n 2 --dist loadfile $(SUBSET)
	$(IN_SECOND) -m experiments.chaos --runs 4 \
		--kills 1 --spread 2 --limit 400 --kinds 'client process,answering process,server,superlink'

flower-quick: $(SECOND)/.flwr-$(VERSION) ## the least of it with the newest Flower of constraints-current.txt: TLS, keys, a kill
	$(IN_SECOND) -m pytest -n 2 --dist loadfile $(QUICK)

flower-next: ## the same with the newest Flower that the index has, pre-releases too: says what an upgrade breaks
	@newest=$$($(BIN)/python -m pip index versions flwr --pre 2>/dev/null | sed -n 's/^Available versions: \([^,]*\).*/\1/p'); \
	echo "flower-next: flwr $$newest"; $(MAKE) --no-print-directory flower VERSION=$$newest

# uv's answer for one file of constraints
COMPILE := echo 'setuptools>=77' | $(BIN)/uv pip compile --quiet pyproject.toml - --extra operate --universal \
	--python-version 3.11 --generate-hashes --no-annotate --no-header -c

requirements: $(STAMP) ## write requirements*.txt: the image's versions of constraints*.txt, with the digests of their files
	mkdir -p build
	$(COMPILE) constraints.txt >build/grpc.txt
	$(COMPILE) constraints-current.txt >build/http.txt
	$(BIN)/python -m experiments.requirements build/grpc.txt build/http.txt

sbom: $(STAMP) ## list what is in the image: build/sbom.json, CycloneDX
	mkdir -p build
	cat requirements.txt requirements-grpc.txt requirements-cuda.txt | PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements - \
		--pyproject pyproject.toml --output-reproducible -o build/sbom.json
	@echo "build/sbom.json: $$($(BIN)/python -c 'import json; print(len(json.load(open("build/sbom.json"))["components"]))') components"

clean: ## remove .venv and everything that tools leave; runs/ stays
	rm -rf .venv .venv-flower build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
