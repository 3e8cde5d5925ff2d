# One entry for everything; `make help` lists it. Needs Python >= 3.11, git and make, nothing else.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE := $(or $(RAP_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rap)
UV_VERSION := 0.13.9
# A uv of our own, so that a bare machine needs none and every machine runs the same one.
UV := $(CACHE)/uv-$(UV_VERSION)/bin/uv
PYTHON ?= python3
EXTRAS := --extra operator --extra trainer-cpu
RUN := $(UV) run --no-sync
PYTEST := $(RUN) pytest
# Tests of one machine run beside each other; the fixtures start their servers once a worker.
WORKERS ?= 2
# A test that not even its time limit ends (it holds the interpreter's lock) says where it stands and ends its worker;
# a worker that died is named, and not begun again: pytest-xdist would run the same test in it without end.
NO_HANGS := -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true --max-worker-restart 0

.PHONY: help
help: ## Lists the targets
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

$(UV):
	@echo "fetching uv $(UV_VERSION) into $(CACHE)"
	@rm -rf $(CACHE)/uv-$(UV_VERSION)*
	@$(PYTHON) -m pip install -q --disable-pip-version-check --no-warn-script-location \
	  --root-user-action=ignore --target $(CACHE)/uv-$(UV_VERSION).partial uv==$(UV_VERSION)
	@mv $(CACHE)/uv-$(UV_VERSION).partial $(CACHE)/uv-$(UV_VERSION)

.PHONY: install
install: $(UV) ## Makes .venv from the lock file (reused when it fits)
	@$(UV) sync -q --frozen --python '>=3.11,<3.14' $(EXTRAS)

.PHONY: demo
demo: install ## The main job: trains on a growing stream for about a minute, survives a kill, writes a report
	@$(RUN) python -m rap_trainer.demo

.PHONY: demo-kafka
demo-kafka: install ## The same on a real Kafka broker, started here
	@PYTHONPATH=operator:trainer:tests $(RUN) python tests/demo/kafka_demo.py

.PHONY: demo-cluster
demo-cluster: install ## A real API server, two nodes of processes, the operator: kubectl apply trains (needs root)
	@PYTHONPATH=operator:trainer:tests $(RUN) python tests/demo/cluster_demo.py

.PHONY: servers
servers: install ## Builds the servers the tests need into the cache (about 20 minutes once)
	@$(RUN) python tests/servers/build.py all

.PHONY: lint
lint: install ## Format, lint, types and import contracts
	@$(RUN) ruff format --check .
	@$(RUN) ruff check .
	@$(RUN) mypy
	@$(RUN) lint-imports

.PHONY: test
test: install ## All tests but the long ones
	@$(PYTEST) -m "not slow and not gpu" -n $(WORKERS) --dist loadscope -q --durations 20 $(NO_HANGS)

.PHONY: test-kills
test-kills: install ## kill -9 of a rank at 30 random steps: the model equals an uninterrupted run's
	@$(PYTEST) -m "slow" tests/train -q

.PHONY: test-kafka-kills
test-kafka-kills: install ## kill -9 of a rank at 100 random moments of a Kafka topic: the ledger has every row once
	@$(PYTEST) -m slow tests/kafka_source/test_kafka_kills.py -k hundred -q

.PHONY: test-kafka-faults
test-kafka-faults: install ## The long forms of Kafka's faults: 20 s without a broker, a 200 MB backlog, 2,000 bad messages
	@$(PYTEST) -m slow tests/kafka_source/test_kafka_faults.py -q

.PHONY: test-slow
test-slow: install ## Every long test: kills, the operator's faults and scale (an hour and more)
	@$(PYTEST) -m slow -q

.PHONY: fuzz
fuzz: install ## A million damaged RAPJob documents are judged without a traceback (about half an hour)
	@PYTHONPATH=operator:trainer:tests $(RUN) python -m operator_world.document_fuzz --documents 1000000

.PHONY: test-older-api
test-older-api: install ## The operator's tests on the oldest supported API line, 1.35 (builds its servers the first time)
	@RAP_KUBERNETES=kubernetes-1.35 $(PYTEST) -m "cluster and not slow" tests/operator -q

.PHONY: test-gpu
test-gpu: ## The tests that need a CUDA device, with the python that is active (only their files are imported)
	@if $(PYTHON) -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; \
	then PYTHONPATH=operator:trainer $(PYTHON) -m pytest -m gpu -q -p no:cacheprovider \
	  $$(grep -rl --include='test_*.py' 'mark\.gpu' tests); \
	else echo "skipped: no CUDA device is visible to $(PYTHON)"; fi

.PHONY: check
check: lint test ## Everything a change must pass

.PHONY: docs
docs: install ## Builds the docs site into build/site
	@$(RUN) mkdocs build --quiet

.PHONY: boards
boards: install ## Writes the chart's dashboards, and draws them for the docs from a real run
	@PYTHONPATH=operator:charts $(RUN) python -m boards
	@RAP_DRAW_BOARDS_INTO=docs/images $(PYTEST) tests/dashboards -q

.PHONY: screenshots
screenshots: install ## Pictures for the docs by headless Chromium, of what `make demo-cluster` and `make boards` left
	@$(RUN) python tests/docs/screenshots.py

.PHONY: bench
bench: install ## Benchmarks that run on a CPU, one JSON line a result
	@for program in file_bench ops_bench runtime_bench; do $(UV) run --no-sync --group bench python trainer/benchmarks/$$program.py; done

.PHONY: clean
clean: ## Removes what a build left in the tree
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .demo dist build
