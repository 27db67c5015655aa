# `make` alone prints what there is. Every target builds .venv/ first, once.
PYTHON ?= python3
STAMP := .venv/.installed
TORCH := var/venv-torch/.installed

.DEFAULT_GOAL := help
.PHONY: help venv demo up wheel test test-torch schemathesis faults mutants bench bench-inventory bench-checkpoints-correctness lint compose-check

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-30s %s\n", $$1, $$2}'

venv: $(STAMP) ## build .venv/ from the hashed constraints

$(STAMP): constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --require-hashes -r constraints.txt
	.venv/bin/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## the whole story on real parts: incidents, kills, lost answers, reconcile, audit
	.venv/bin/counterfoil demo

up: $(STAMP) ## the local stack in var/up, left running to look at until Ctrl-C
	.venv/bin/counterfoil up

wheel: $(STAMP) ## counterfoil-checkpoints, for training engineers, into var/wheels: built from a copy of its folder
	rm -rf var/checkpoints-build && mkdir -p var && cp -R services/checkpoints var/checkpoints-build
	.venv/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir var/wheels var/checkpoints-build
	rm -rf var/checkpoints-build

test: $(STAMP) ## lint, types, import contracts and every test
	$(MAKE) --no-print-directory lint
	.venv/bin/pytest --numprocesses 4 --dist worksteal

$(TORCH): pyproject.toml
	$(PYTHON) -m venv var/venv-torch
	# The smaller build for processors alone, where the index has it; any other will do.
	var/venv-torch/bin/pip install --quiet --no-compile 'torch==2.13.0+cpu' || var/venv-torch/bin/pip install --quiet --no-compile torch
	var/venv-torch/bin/pip install --quiet --no-compile 'numpy>=2.4' 'ml-dtypes>=0.6' 'blake3>=1.0' 'pytest>=9.2' 'pytest-timeout>=2.4'
	@touch $@

test-torch: $(TORCH) ## the adapter for PyTorch, in an environment of its own in var/venv-torch
	var/venv-torch/bin/python -m pytest tests/torch

faults: $(STAMP) ## the fault campaigns with their full counts: races, kills, cuts, a death at every seam (`make test`: shorter)
	.venv/bin/pytest tests/faults/inventory tests/faults/seams tests/faults/checkpoints tests/services/inventory/verification tests/services/inventory/test_any_history.py --long --timeout 1800 --numprocesses 2 --dist worksteal

schemathesis: $(STAMP) ## requests drawn from the inventory's OpenAPI document, all checks, both databases (installs schemathesis into var/)
	.venv/bin/python -m tests.drawn_requests

mutants: $(STAMP) $(TORCH) ## each guard of docs/guarantees.md removed in turn: the tests must notice (minutes)
	.venv/bin/python -m tests.mutants

lint: $(STAMP) ## ruff, mypy, import-linter
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: $(STAMP) ## what durability costs: on real parts, side by side in one run; about a quarter of an hour
	.venv/bin/python -m benchmarks

bench-checkpoints-correctness: $(TORCH) ## where a cut can go wrong: torch.distributed.checkpoint and ours, side by side
	var/venv-torch/bin/python -W ignore -m benchmarks.checkpoint_correctness

bench-inventory: $(STAMP) ## the inventory alone: against its framework, its database, and as receipts grow
	.venv/bin/python -m benchmarks inventory

compose-check: ## docker-compose reads docker-compose.yml (needs that program, and no engine)
	docker-compose config --quiet
	docker-compose --profile light config --quiet
