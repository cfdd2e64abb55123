# Everything here sets itself up on a fresh Debian or Ubuntu: virtual environment, packages, data.
.PHONY: demo test check dashboard benchmarks clean help
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
SEED ?= 0
OUT ?= demo
export PYTHONUNBUFFERED := 1

help:           ## Show the targets.
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.all  ## Re-enact the incident: train, evaluate, compare, alert (about 7 minutes).
	$(BIN)/evalmon demo --seed $(SEED) --out $(OUT)

dashboard: $(VENV)/.all  ## Open the dashboard on the demo's store (OUT=folder for another).
	$(BIN)/streamlit run dashboards/app.py -- --store $(OUT)/evalmon.sqlite

check: $(VENV)/.check  ## Format, lint, types, import contracts, fast tests.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest -q -m "not slow and not torch and not browser and not package"

test: $(VENV)/.test  ## All tests: also torch, Chromium, real processes; in two halves at once.
	@$(BIN)/pytest tests/e2e tests/browser tests/unit/trainer/data tests/unit/trainer/weights > $(VENV)/processes.log 2>&1 & processes=$$!; \
		$(BIN)/pytest tests/contract tests/property tests/unit --ignore=tests/unit/trainer/data \
			--ignore=tests/unit/trainer/weights; first=$$?; \
		wait $$processes; second=$$?; cat $(VENV)/processes.log; \
		exit $$((first || second))

benchmarks: $(VENV)/.test  ## Operating characteristics, speed ratios, memory (about an hour).
	$(BIN)/python -m tests.benchmarks.startup
	$(BIN)/python -m tests.benchmarks.detection
	$(BIN)/python -m tests.benchmarks.compare
	$(BIN)/python -m tests.benchmarks.parity
	$(BIN)/python -m tests.benchmarks.train
	$(BIN)/python -m tests.benchmarks.convert
	$(BIN)/python -m tests.benchmarks.data
	$(BIN)/python -m tests.benchmarks.scoring

clean:          ## Remove the virtual environment and the demo.
	rm -rf $(VENV) $(OUT)

# uv installs the same pins several times faster; pip serves where uv cannot reach its index.
install = $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt $(1) \
	|| $(BIN)/python -m pip install --quiet -c constraints.txt $(1)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "evalmon needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		$(SUDO) apt-get update -q && $(SUDO) apt-get install -qy python3-venv && $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv || true

$(VENV)/.all: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,-e '.[all]')
	@touch $@

$(VENV)/.check: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,-e '.[all$(,)check]')
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch accelerate
	$(call install,-e '.[test]')
	@command -v chromium > /dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy chromium fonts-dejavu-core; }
	@touch $@

, := ,
