# Every command of the project, the same for a person and for CI. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest
SEED_BASE ?= 1
# Three workers for two cores, because many tests wait, and at most eight: each needs a gigabyte.
WORKERS := $(shell n=$$(( ($$(nproc) * 3 + 1) / 2 )); echo $$(( n < 8 ? n : 8 )))
PARALLEL := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup servers tools grafana demo test test-fast test-frameworks test-nightly check format lint types rules generate lock unchanged bench bench-detection bench-loss record preview clean

help: ## list the commands
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

setup: $(VENV)/.complete servers tools grafana ## virtual environment, dependencies, Prometheus, Alertmanager, helm and Grafana's packages

$(VENV)/.complete: pyproject.toml constraints.txt
	$(PYTHON) .ci/require.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[all]'
	touch $@

servers: ## install Prometheus and Alertmanager where they are missing
	@bash .ci/servers

tools: ## fetch helm and kubectl into .tools where they are missing
	@$(PYTHON) .ci/tools.py

grafana: ## fetch Grafana's npm packages into tests/grafana where they are missing
	@bash .ci/grafana

demo: setup ## slow one rank of a real run down and print the alert that names it
	$(BIN)/rankwatch demo

test-fast: setup ## the tests that start no process, while you work
	$(PYTEST) $(PARALLEL) -m "not process and not nightly and not frameworks"

test: setup ## each alert, hook, engine, source and page, and the whole path live
	$(PYTEST) $(PARALLEL) -m "not nightly and not frameworks"

test-frameworks: setup $(VENV)/.frameworks .tools/mlflow/.complete ## one case of each framework: Hugging Face, Lightning, DeepSpeed, Ray, Keras, JAX
	$(PYTEST) $(PARALLEL) -m "frameworks and not nightly"

test-nightly: setup $(VENV)/.frameworks .tools/mlflow/.complete ## what takes an hour: ordinary life, all rules in every gap, hostile loops, nodes and files, a young machine, soak
	$(PYTEST) $(PARALLEL) --timeout 1800 -m nightly
	$(BIN)/python -m tests.bench.fuzz
	$(BIN)/python -m tests.bench.soak
	$(BIN)/python -m tests.bench.hostile_node # needs root

.tools/mlflow/.complete: # a server of its own environment: its many dependencies are none of ours
	$(PYTHON) -m venv .tools/mlflow
	.tools/mlflow/bin/pip install --quiet mlflow==3.17.2
	touch $@

$(VENV)/.frameworks: pyproject.toml constraints.txt $(VENV)/.complete
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[frameworks]'
	$(BIN)/pip install --quiet --no-deps torchtitan==0.3.0 # the tests need its logger only, and not the old fsspec that it wants
	touch $@

check: setup lint types rules unchanged test ## what CI holds, but for the frameworks: format, lint, types, rules, generated files, tests

format: setup ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup ## check format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup ## check types
	$(BIN)/mypy

rules: setup ## check rules, Alertmanager configuration, runbooks and dashboards: promtool, amtool and the project's own lint
	@command -v promtool amtool >/dev/null || { echo "promtool or amtool is missing: see make servers"; exit 2; }
	promtool check rules --lint=all --lint-fatal alerts/generated/*.rules.yml
	amtool check-config alerts/generated/alertmanager.yml
	$(BIN)/pytest -q -p no:cacheprovider tests/alerts/test_lint.py tests/dashboards/test_lint.py

generate: setup ## rebuild rules, dashboards, manifests and references
	bash .ci/manifests
	$(BIN)/rankwatch reference metrics > docs/metrics.md
	$(BIN)/rankwatch reference settings > docs/settings.md
	$(BIN)/rankwatch reference rules > docs/rules.md
	$(BIN)/rankwatch reference slis > docs/slis.md

lock: setup ## write the hashes of what image and unit of the agent install anew, from the index that pip uses
	$(BIN)/python .ci/lock.py

unchanged: generate ## check that generated files are what the code generates
	@git diff --exit-code -- alerts/generated dashboards/generated agent/deploy docs || \
	  { echo "generated files are not what the code generates: run make generate and commit"; exit 1; }

bench: setup ## measure: hot path, training slowdown, agent; table and bench-results/*.json
	$(BIN)/python -m tests.bench

bench-detection: setup ## diagnose simulated jobs and re-timed real ones; SEED_BASE=2 takes others
	$(BIN)/python -m tests.bench.detection --seed-base $(SEED_BASE)
	$(BIN)/python -m tests.bench.detection.curves --seed-base $(SEED_BASE)
	$(BIN)/python -m tests.bench.real_jobs
	$(BIN)/python -m tests.bench.detection_scale

bench-loss: setup ## our loss detector beside those of others on the same healthy and diverging curves
	$(BIN)/python -m tests.bench.loss_detection

record: setup ## record a healthy run and runs with faults again, for the tests of rules and panels; takes minutes
	cd tests && ../$(BIN)/python -m support.recorded.record

preview: setup ## draw the first screens of all dashboards in Grafana's code, from the recorded runs, into docs/images; needs chromium
	cd tests && ../$(BIN)/python -m support.recorded.preview

clean: ## remove the virtual environment, helm, Grafana's packages and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .tools tests/grafana/node_modules bench-results
