# Two commands do everything: `make study` answers a question, `make test` checks the project.

PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed
DOCS_STAMP := .venv/.docs-installed

.PHONY: setup study paper atlas atlas-verify benchmark test pytest test-browser torture lint bench \
	sampler-bench docs docs-test docs-update release clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml setup.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@echo "Compiling, once per installation: about a minute of processor time."
	$(BIN)/phaze-opt evaluate --model bert-large --accelerator tpuv4-lanes --cluster flat-4GiB \
		--devices 8 --global-batch 8 --microbatch 1 > /dev/null
	$(BIN)/python -c "import phaze_opt.evaluation, phaze_opt.compiled as c; c.load_all()"
	touch $(STAMP)

study: $(STAMP)
	$(BIN)/phaze-opt study create studies/quickstart.toml --exist-ok
	$(BIN)/phaze-opt study run quickstart
	$(BIN)/phaze-opt study show quickstart

# At most an hour from nothing; answers that build/paper has are not computed again.
paper: $(STAMP)
	$(BIN)/python -m studies.paper $(OPTIONS)

# Some 80 spaces, each enumerated; answers that build/atlas has are not computed again, nor those of
# OPTIONS="--answers studies/atlas/answers.jsonl", which came with the page.
atlas: $(STAMP)
	$(BIN)/python -m studies.atlas $(OPTIONS)

# Every certificate of build/atlas, each in a process of its own.
atlas-verify: $(STAMP)
	$(BIN)/python -m studies.atlas --check $(OPTIONS)

# Samplers on the bundled tables: three minutes; OPTIONS="--tables" computes these too.
benchmark: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m studies.benchmark $(OPTIONS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The checks, each of one process, beside the tests: no core waits for them.
test: $(STAMP)
	$(MAKE) --jobs=2 lint pytest

pytest: $(STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal

# Needs Debian's chromium and chromium-driver, which .ci/browser installs.
test-browser: $(STAMP)
	$(BIN)/python -m pytest tests/browser --override-ini addopts="--strict-markers --strict-config -q"

# Half an hour; OPTIONS="--only arguments --seconds 60" is one case, "--resume FILE" goes on.
torture: $(STAMP)
	$(BIN)/python -W ignore -m tests.torture $(OPTIONS)

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks.table
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only --override-ini addopts=

# Two hours; OPTIONS="--models bert-large --seeds 2 --trials 100" is a short form.
sampler-bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks.sampler_bench $(OPTIONS)

$(DOCS_STAMP): requirements-docs.lock $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.lock
	touch $(DOCS_STAMP)

# Into build/docs, to be opened as files; without a warning, and offline.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# Runs every command, program and notebook that the documentation shows: some minutes.
docs-test: $(DOCS_STAMP)
	$(BIN)/python -m pytest tests/docs/run -n 2 --dist worksteal \
		--override-ini addopts="--strict-markers --strict-config -q"

# After a change of the cost model: what notebooks print, and README's table of truth.
docs-update: $(DOCS_STAMP)
	$(BIN)/python -m docs.tools.notebooks --write
	$(BIN)/python -m docs.tools.truth --write

# Wheel and sdist into dist, each tried in fresh environments of the Pythons that are there.
release: $(DOCS_STAMP)
	$(BIN)/python -m docs.tools.release $(OPTIONS)

clean:
	rm -rf .venv build dist *.egg-info
