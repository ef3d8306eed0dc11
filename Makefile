# `make serve` is the whole first run; `make help` lists the rest.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CONFIG ?= configs/demo.yaml
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup serve test check fix verify bench clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[demo,quantized,dev]"
	touch $(STAMP)

setup: $(STAMP) ## make .venv and install the project into it

serve: $(STAMP) ## fetch the demo model (once) and serve it on 127.0.0.1:8000
	$(BIN)/dspark serve --config $(CONFIG)

test: $(STAMP) ## the tests, under ten minutes on two cores
	$(BIN)/pytest -m "not gpu and not slow"

check: $(STAMP) ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fix: $(STAMP) ## apply what format and lint can apply
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

verify: $(STAMP) ## the long proofs: identity with transformers, distribution, leaks, traces
	$(BIN)/pytest -m "slow and not gpu" -o addopts="--strict-markers --strict-config -v"

bench: $(STAMP) ## both comparisons the project is for
	$(BIN)/dspark bench --config $(CONFIG) --compare speculation
	$(BIN)/dspark bench --config $(CONFIG) --compare stacked

clean: ## remove the virtual environment and caches of tools
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
