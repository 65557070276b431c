PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_FOR_TESTS := $(VENV)/.installed-for-tests
# Bytecode is kept even where the environment says otherwise: tasks of a cluster would compile all of jax at each start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: venv venv-for-tests test lint demo tiers long chaos chaos-coordinator bench bench-peers optimizers clean

venv: $(INSTALLED)
venv-for-tests: $(INSTALLED_FOR_TESTS)

# Installs penstock, with the extras in brackets. Modules are compiled when they are first used: most never are.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "penstock needs Python 3.11 or newer, '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Pass PYTHON=/path/to/python3."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.$(1)'
endef

# A stamp is newer than pyproject.toml once what that asks for is installed: what penstock needs, and what tests need.
$(INSTALLED): pyproject.toml
	$(call install)
	touch $@

$(INSTALLED_FOR_TESTS): pyproject.toml
	$(call install,[test])
	touch $(INSTALLED) $@

test: venv-for-tests
	$(BIN)/python -m pytest -n 2 --dist loadfile tests

lint: venv-for-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy penstock
	$(BIN)/lint-imports

demo: venv
	$(BIN)/penstock launch --ps 1 --workers 2 --grace 10 examples/digits_cluster.py

# All golden cases in every tier; `make test` has some of them.
tiers: venv-for-tests
	GOLDEN_TIERS_EVERY=1 $(BIN)/python -m pytest -n 2 tests/test_golden_tiers.py

# Further variants of tests of faults and of golden programs, which `make test` leaves out.
long: venv-for-tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long tests

# Kills tasks of a training at many moments. The whole sweep takes hours: make chaos CHAOS="--every 100"
chaos: venv
	$(BIN)/python tests/cluster/kill_sweep.py $(or $(CHAOS),--every 1000 --seconds 1200)

# Mixes of faults for a coordinator, each with another seed; `make test` has a few: make chaos-coordinator SEEDS=100
chaos-coordinator: venv-for-tests
	COORDINATOR_CHAOS=$(or $(SEEDS),20) $(BIN)/python -m pytest -k any_mix tests/distribute

bench: venv
	$(BIN)/python benchmarks/local_session.py
	$(BIN)/python benchmarks/training.py

# TENSORFLOW is a Python that has it, in an environment of its own: make bench-peers TENSORFLOW=/path/to/python
bench-peers: venv
	$(BIN)/python benchmarks/peers.py $(if $(TENSORFLOW),--tensorflow $(TENSORFLOW))

# Trains on the digits by every distributed method, and writes the picture of docs/distributed-optimizers.md.
optimizers: venv-for-tests
	$(BIN)/python benchmarks/distributed_optimizers.py --plot=docs/distributed-optimizers.png

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
