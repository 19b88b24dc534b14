# `make` lists the targets. Each of them installs what it needs first, which is quick when it is there.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin

.PHONY: help install demo test e2e lint format bench gpu-check dashboards crds requirements clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## Make .venv with Pagelet and all that it needs (PYTHON=... chooses the interpreter)
	@scripts/install.sh

demo: install ## Two replicas of SmolLM2-135M, one killed in mid-answer; ONCE=1 ends after it
	@$(BIN)/python scripts/demo.py $(if $(filter-out 0,$(ONCE)),--once)

test: install ## Run all tests; ARGS="tests/engine -k scheduler" to run some
	@$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

e2e: install ## Test all of it on a real Kubernetes cluster, which it brings up; ARGS="-k walkthrough"
	@$(BIN)/pytest e2e -s -rs $(ARGS)
	@$(if $(ARGS),,E2E_BUILD=1 $(BIN)/pytest -rs tests/operator tests/charts tests/router/replicas/test_kubernetes.py)

lint: install ## ruff, mypy --strict, and the rules on which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy scripts examples e2e tests/bench tests/test_*.py
	$(BIN)/lint-imports

format: install ## Let ruff format the code
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

bench: install ## Measure the host's own cost with the simulated runner, and the start-up
	@$(BIN)/pagelet bench host $(ARGS)

gpu-check: install ## See in under 8 minutes what of the GPU path holds on this machine; writes docs/gpu-checks.md
	@$(BIN)/python -m pagelet.bench.gpu_check $(ARGS)

dashboards: install ## Write Grafana's dashboards and draw them, with what a real Prometheus finds (3 minutes)
	@$(BIN)/python scripts/dashboards.py
	@PYTHONPATH=tests:e2e:scripts E2E_BUILD=1 $(BIN)/python tests/charts/draw_dashboards.py

crds: install ## Write the CRD, the chart's copy of it and its reference, from protocol/inference_service
	@$(BIN)/python -m pagelet.protocol.inference_service.crd \
	  crds/inferenceservices.yaml charts/pagelet/files/inferenceservices.yaml
	@$(BIN)/python -m pagelet.protocol.inference_service.reference docs/inference-service.md

requirements: install ## Pin the dependencies of pyproject.toml again
	@scripts/compile_requirements.sh

clean: ## Remove .venv and everything else that was made here
	@rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache bench/results
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
