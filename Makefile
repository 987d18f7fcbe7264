# Kafka Assigner: `make` lists the targets.
MAKEFLAGS += --no-print-directory --silent
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.14 python3,$(shell command -v $(name) 2>/dev/null)))
VENV ?= .venv
BIN := $(VENV)/bin
STORE ?= memory
GRPC_PORT ?= 50051
HTTP_PORT ?= 8080
# Worker processes for the tests. One is long busy with the tests that start Spark; the others mostly wait for timers.
JOBS ?= 8
# With groups, pytest-xdist does not go on after a worker died, and waits for ever: so the run ends there.
WORKERS = -n $(JOBS) --dist loadgroup --max-worker-restart 0
# How long `make soak` churns and `make chaos-processes` kills.
MINUTES ?= 20
# How many seeds of chaos: make chaos SEEDS=2000.
SEEDS ?= 200
# Arguments for the tools: make test ARGS="-k lease", make bench ARGS="--quick".
ARGS ?=

# Some machines forbid Python to keep what it compiled. Here every process would compile its imports anew: seconds for
# each of the hundreds that the tests start.
unexport PYTHONDONTWRITEBYTECODE

# An environment is as new as what it was installed from, so its stamp carries that content's hash.
fingerprint = $(shell cat $(1) pyproject.toml tools/install_environment.py | cksum | cut -d' ' -f1)
DEV_STAMP := $(VENV)/.installed-$(call fingerprint,requirements/dev.lock requirements/build.lock)
RUN_STAMP := .venv-run/.installed-$(call fingerprint,requirements/run.lock requirements/build.lock)
# Where the development environment is complete it serves too, and nothing is installed twice.
SERVING := $(if $(wildcard $(DEV_STAMP)),$(VENV),.venv-run)
SERVING_STAMP := $(if $(wildcard $(DEV_STAMP)),$(DEV_STAMP),$(RUN_STAMP))

.PHONY: help
help: ## List the targets
	grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

.PHONY: install
install: $(DEV_STAMP) ## Install everything for development into .venv

$(DEV_STAMP):
	$(PYTHON) tools/install_environment.py --venv $(VENV) --lock requirements/dev.lock
	rm -f $(VENV)/.installed-* && touch $@

$(RUN_STAMP):
	$(PYTHON) tools/install_environment.py --venv .venv-run --lock requirements/run.lock
	rm -f .venv-run/.installed-* && touch $@

.PHONY: run
run: $(SERVING_STAMP) ## Serve here: store in memory, gRPC on 50051, HTTP on 8080
	exec $(SERVING)/bin/assigner serve --store $(STORE) --grpc-port $(GRPC_PORT) --http-port $(HTTP_PORT) $(ARGS)

.PHONY: demo
demo: $(SERVING_STAMP) ## Watch workers join, leave and hand partitions over
	exec $(SERVING)/bin/assigner demo $(ARGS)

.PHONY: bench
bench: install ## Measure the service; see docs for what the numbers mean
	exec $(BIN)/python -m bench $(ARGS)

.PHONY: soak
soak: install get-etcd ## Churn and cut connections for MINUTES (20), then see that nothing grew and nobody died
	exec $(BIN)/python -m bench.soak --minutes $(MINUTES) $(ARGS)

.PHONY: bench-attacks
bench-attacks: install ## Attack a service in many ways, and show what its consumers went through
	exec $(BIN)/python -m bench.attacks $(ARGS)

# The attacks come last and alone: they measure what load does to others, so there must be no other load. A seed of chaos
# is the same course again only with the same order of sets, hence the fixed hash seed.
.PHONY: test
test: install ## Lint, then run all tests, against real etcd, Kafka, PostgreSQL and Spark where they can be had
	$(MAKE) -j lint get-etcd get-kafka get-postgres archive-spark compile-tests
	PYTHONHASHSEED=0 $(BIN)/python -m pytest $(WORKERS) --ignore=tests/attacks $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m pytest tests/attacks)

# In a new checkout each worker would compile every test and every import itself, all at the same time. What is wrong with
# a test module, the tests themselves say.
.PHONY: compile-tests
compile-tests: install
	$(BIN)/python -m pytest --collect-only -qq tests >/dev/null 2>&1 || true

# What starts no server, no Spark and no process: unit tests, and scenarios on the memory store.
.PHONY: test-fast
test-fast: install ## Run the unit tests and the scenarios on the memory store: no servers, no Spark, two minutes
	PYTHONHASHSEED=0 $(BIN)/python -m pytest $(WORKERS) -q tests/unit tests/scenarios \
		-m "not (etcd or kafka or postgres or processes or slow or spark)" $(ARGS)

.PHONY: test-lowest
test-lowest: install ## Test client and logs with the lowest versions that pyproject.toml allows; fails without a package index
	$(BIN)/python tools/test_lowest.py $(ARGS)

.PHONY: test-spark
test-spark: install ## Run only the tests that start Spark, which need Java 17
	$(MAKE) -j get-kafka get-postgres archive-spark
	$(BIN)/python -m pytest tests/spark $(ARGS)

.PHONY: test-attacks
test-attacks: install ## Attack a running service, lightly and heavily: takes minutes and both cores
	$(BIN)/python -m pytest tests/attacks -m "attack or not attack" $(ARGS)

# Suites that others wrote, with compilers for C, Java and Go: most of an hour on two cores. ARGS names suites and tests.
.PHONY: test-kafka-suites
test-kafka-suites: install get-kafka kafka-suites ## Run the suites of Kafka's clients on a broker and behind the gateway, side by side
	exec $(BIN)/python -m tests.suites $(ARGS)

.PHONY: mixed-group
mixed-group: install get-etcd get-kafka ## Run Kafka clients and gRPC consumers as one group, kill some, and account for each record
	exec $(BIN)/python -m tests.kafka_groups.mixed $(ARGS)

# What can't be had is told, and the tests that need it are skipped.
.PHONY: get-etcd get-kafka get-postgres
get-etcd get-kafka get-postgres: get-%: install
	$(BIN)/python tools/install_$*.py || true

.PHONY: archive-spark
archive-spark: install
	$(BIN)/python tools/archive_spark.py || true

# Seeds are replayed exactly only if sets are walked in the same order.
.PHONY: chaos
chaos: install ## Try SEEDS seeds of chaos in virtual time, and tell in a table what was tried and found
	PYTHONHASHSEED=0 exec $(BIN)/python -m tests.chaos.run --seeds $(SEEDS) $(ARGS)

.PHONY: chaos-processes
chaos-processes: install get-etcd ## Kill, freeze and cut real processes for MINUTES (20), and see that nothing was broken
	exec $(BIN)/python -m tests.chaos.processes --minutes $(MINUTES) $(ARGS)

.PHONY: docs-modules
docs-modules: ## Make the table of modules in docs/architecture.md anew, from the docstrings
	$(PYTHON) tools/module_table.py

.PHONY: lint
lint: install ## Check style, types, the import rules, and that no merge is half done
	status=0; \
	$(BIN)/ruff check --quiet . || status=1; \
	$(BIN)/ruff format --quiet --check . || { echo "The files above are not in the project's style: make format"; status=1; }; \
	$(BIN)/mypy --no-error-summary || status=1; \
	! git grep -nE '^(<{7}|>{7}) ' || { echo "The lines above are left over from a merge: resolve them"; status=1; }; \
	report=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$report"; status=1; }; \
	exit $$status

.PHONY: format
format: install ## Rewrite the code in the project's style
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .

.PHONY: proto
proto: install ## Generate the Python code from the .proto files
	$(BIN)/python tools/generate_proto.py $(ARGS)

.PHONY: etcd
etcd: ## Get a current etcd for the tests, cached outside the repository
	$(PYTHON) tools/install_etcd.py

.PHONY: kafka
kafka: ## Get a current Kafka for the tests, cached outside the repository
	$(PYTHON) tools/install_kafka.py

.PHONY: kafka-suites
kafka-suites: install ## Get the suites of Kafka's clients, built in exact versions outside the repository
	$(BIN)/python tools/install_kafka_suites.py || true

.PHONY: postgres
postgres: install ## Get a PostgreSQL for the tests, cached outside the repository
	$(BIN)/python tools/install_postgres.py

.PHONY: lock
lock: install ## Resolve the dependencies anew and write requirements/*.lock
	UV=$(BIN)/uv $(SHELL) tools/lock.sh $(ARGS)

.PHONY: clean
clean: ## Remove the environments and all that was built
	rm -rf .venv .venv-run build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
