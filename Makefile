# `make serve` and `make test` set everything up first; nothing else is needed but Python 3.11+, git and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: setup serve test test-all test-pythons test-engines test-training check bench bench-client bench-cores bench-episodes bench-growth bench-judging bench-key bench-mcp bench-openenv bench-placement bench-sandbox bench-studio bench-verl bench-toolserver soak docs clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory .venv/serves
	@echo 'Installing the tools of developers and all extras into .venv, about 1.3 GB'
	$(INSTALL) '.[dev]'
	@touch $@

.venv/serves: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Toolyard needs Python 3.11 or newer; try make PYTHON=python3.12")'
	@echo 'Installing what serving needs into .venv, about 90 MB'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) .
	@touch $@

serve: .venv/serves  # on port 8080, or TOOLYARD_PORT=8090; what happens in sessions is kept in episodes.db
	@trap : INT; $(BIN)/toolyard serve --record episodes.db || test $$? -eq 130  # Ctrl-C is no error

test: setup
	$(BIN)/python -m tests

test-all: setup  # all that `make test` leaves out; TESTS=--lenient forgives tests that pass the second time
	$(BIN)/python -m tests --thorough $(TESTS)

test-training: setup  # the recipes of examples/training until they have learned, some minutes; needs PyTorch and TRL
	nice $(BIN)/python -m pytest -q -n 0 tests/peers/training.py

test-pythons: setup  # with each Python from 3.11 on that is installed here; PYTHONS="3.12 3.13" for some of them
	$(BIN)/python -m tests.pythons $(PYTHONS)

test-engines: setup  # sandboxes in containers of Podman, as root on Debian; ENGINES= for more arguments
	$(BIN)/python -m tests.engines $(ENGINES)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m benchmarks.ors

bench-client: setup
	$(BIN)/python -m benchmarks.client

bench-sandbox: setup
	$(BIN)/python -m benchmarks.sandbox

bench-verl: setup  # VERL_TOOL=path of a checkout of verl-tool
	$(BIN)/python -m benchmarks.verl --checkout $(VERL_TOOL)

bench-toolserver: setup  # XAGENT=path of a checkout of XAgent
	$(BIN)/python -m benchmarks.toolserver --checkout $(XAGENT)

bench-judging: setup
	$(BIN)/python -m benchmarks.judging

bench-key: setup
	$(BIN)/python -m benchmarks.key

bench-mcp: setup
	$(BIN)/python -m benchmarks.mcp

bench-openenv: setup
	$(BIN)/python -m benchmarks.openenv

bench-placement: setup
	$(BIN)/python -m benchmarks.placement

bench-cores: setup  # CORES="--seconds 8" for longer turns
	$(BIN)/python -m benchmarks.cores $(CORES)

bench-growth: setup  # GROWTH="--rows bash --sizes 64,1024" for a part of it
	$(BIN)/python -m benchmarks.growth $(GROWTH)

bench-episodes: setup  # EPISODES="--only costs" for a part of it
	$(BIN)/python -m benchmarks.episodes $(EPISODES)

bench-studio: setup  # STUDIO="--write-page" to put the table into docs/studio.md
	$(BIN)/python -m benchmarks.studio $(STUDIO)

soak: setup
	$(BIN)/python -m benchmarks.verl_soak

docs: setup  # the reference and the API from the code, the drawings, and the site in site/
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/drawings.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:
	rm -rf .venv
