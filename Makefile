# `make serve` is the whole first run; `make help` lists the rest. Flags for the server go into ARGS:
# make serve ARGS="--port 8001"
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CONFIG ?= configs/demo.yaml
PIP    := $(BIN)/python -u -m pip --disable-pip-version-check
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-for-development
TESTS  := $(VENV)/.installed-for-tests
PAGE   := $(VENV)/.installed-for-the-page
RAY    := $(VENV)/.installed-for-replicas
CHROMIUM ?= chromium
ARGS   ?=
N      ?= 10000

# Install the project with $$extras, without pip's hundreds of lines: what it is at, in one line of a terminal
# or else in a line each. Errors are pip's own, and so is the exit status.
define install
{ $(PIP) install --constraint constraints.txt --editable ".[$$extras]"; echo "status $$?"; } | { \
    if [ -t 1 ]; then line='\r\033[K  %.70s'; else line='  %.70s\n'; fi; \
    while read -r what rest; do case "$$what" in \
        Collecting | Downloading | Building | Installing) printf "$$line" "$$what $$rest" ;; \
        status) [ ! -t 1 ] || printf '\r\033[K'; exit "$$rest" ;; \
    esac; done; }
endef

.DEFAULT_GOAL := help
.PHONY: help setup serve serve-replicas test test-page test-ray test-clients check fix verify verify-cuda soak bench docs clean

help: ## list the targets
	@grep -E '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# The stamp is touched last, so an interrupted installation is taken up again; while it is newer than
# the two files, nothing here runs and no network is needed. A .venv made by hand is completed.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(BIN)/python is older than Python 3.11; remove $(VENV) and name another: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	@echo "installing into $(VENV): torch, then the rest; a few minutes the first time"
	$(PIP) install --constraint constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	@extras=demo; $(install)
	@touch $(STAMP)

$(DEV): $(STAMP)
	@echo "installing the tools of development into $(VENV)"
	@extras=quantized,dev; $(install)
	@touch $(DEV)

# Only tests need triton on a machine without a GPU, and it takes a gigabyte.
$(TESTS): $(DEV)
	@echo "installing triton into $(VENV) for the tests, about a gigabyte"
	@extras=triton; $(install)
	@touch $(TESTS)

setup: $(STAMP) ## make .venv and install the project into it

serve: $(STAMP) ## fetch the demo model (once) and serve it on 127.0.0.1:8000
	$(BIN)/dspark serve --config $(CONFIG) $(ARGS)

$(RAY): $(STAMP)
	@echo "installing ray[serve] into $(VENV), about half a gigabyte"
	@extras=ray; $(install)
	@touch $(RAY)

serve-replicas: $(RAY) ## two replicas of the demo behind 127.0.0.1:8000, on Ray Serve
	$(BIN)/dspark deploy --config $(CONFIG) $(ARGS)

# A process for each core and a thread for each process: two threads beside another busy process are
# several times slower than one.
test: $(TESTS) ## the tests, under ten minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 8

$(PAGE): $(TESTS)
	@extras=page; $(install)
	@touch $(PAGE)

# A browser is the system's: CHROMIUM names another one.
test-page: $(PAGE) ## the playground in a browser; installs Debian's chromium if there is none
	@command -v $(CHROMIUM) >/dev/null || { apt-get update -q && apt-get install -qy chromium; }
	OMP_NUM_THREADS=1 CHROMIUM="$$(command -v $(CHROMIUM))" $(BIN)/pytest -m page tests/server/playground

test-ray: $(TESTS) $(RAY) ## deployments of replicas on Ray Serve, about four minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/pytest -m ray tests/dspark/deploy tests/dspark/batch

test-clients: $(DEV) ## unmodified third-party clients; ARGS="--base-url URL" for a running server
	$(BIN)/python -m tests.clients.run $(ARGS)

check: $(DEV) ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fix: $(DEV) ## apply what format and lint can apply
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

verify: $(TESTS) ## the long proofs: identity with transformers, distribution, leaks, traces
	$(BIN)/pytest -m "slow and not gpu" -o addopts="--strict-markers --strict-config -v" \
	    -o log_cli=true -o log_cli_level=INFO
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "hypothesis and not slow and not gpu" --hypothesis-profile=default --numprocesses auto

# Kernels are compiled for every supported device, FlashInfer's wheels are read, steps run on fakes.
verify-cuda: $(TESTS) ## what a machine without a GPU can prove of the CUDA path; an hour on two cores
	OMP_NUM_THREADS=1 $(BIN)/pytest -m cuda --numprocesses auto --maxprocesses 8

soak: $(DEV) ## N mixed requests on a tiny model (ARGS=demo: the demo pair): nothing grows
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.support.server.soak $(N) $(ARGS)

bench: $(STAMP) ## against plain decoding, and the two context writes
	$(BIN)/dspark bench --config $(CONFIG) --compare speculation
	$(BIN)/dspark bench --config $(CONFIG) --compare stacked

docs: $(DEV) ## write the generated pages and the picture again
	$(BIN)/python -m dspark.cli.reference_docs
	$(BIN)/python -m tests.support.engine.options_table
	$(BIN)/python -m tests.support.engine.models_table
	$(BIN)/python -m dspark.bench.pictures

clean: ## remove the virtual environment and caches of tools
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
