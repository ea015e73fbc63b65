# Everything runs in a virtual environment, .venv, which is made on first use with Python 3.11 or newer.
#   make explore [PORT=5006] [PYTHON=python3.12]
PORT ?= 5006
export PYTHON

# Hundreds of processes load the package. Unless bytecode is kept, each of them compiles the sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: explore test test-all lint docs notebooks pictures package environment benchmarks clean help

help:
	@echo "make explore      install what is missing and open the explorer on http://127.0.0.1:$(PORT)"
	@echo "make test         all checks and tests"
	@echo "make test-all     the same on every case, and the slow tests (hours)"
	@echo "make lint         only the static checks"
	@echo "make docs         the documentation as a site, in site/"
	@echo "make notebooks    run the notebooks and keep their outputs (minutes)"
	@echo "make pictures     take the documentation's pictures of the explorer (minutes)"
	@echo "make package      sdist and wheel in dist/, tried in empty environments"
	@echo "make environment  environment.yml from pyproject.toml"
	@echo "make benchmarks   timings and accuracy, as ratios"
	@echo "make clean        remove environments, caches and what was built"

explore:
	@bash scripts/setup_venv.sh .venv auto app,notebooks
	@bash scripts/warm.sh
	@exec .venv/bin/toast-lab serve --port $(PORT)

test:
	@bash scripts/test.sh

test-all:
	@TOAST_LAB_SAMPLE=all bash scripts/test.sh

lint:
	@bash scripts/setup_venv.sh .venv auto app,notebooks,dev
	@bash scripts/lint.sh

docs:
	@bash scripts/setup_venv.sh .venv auto app,docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet
	@echo "open site/index.html"

notebooks:
	@bash scripts/setup_venv.sh .venv auto app,notebooks,dev
	@bash scripts/ensure_chromium.sh
	@bash scripts/warm.sh
	@exec .venv/bin/python scripts/notebooks.py

pictures:
	@bash scripts/setup_venv.sh .venv auto app,notebooks,dev
	@bash scripts/ensure_chromium.sh
	@bash scripts/warm.sh
	@.venv/bin/python -m tests.browser.front_picture
	@.venv/bin/python -m tests.browser.report_pictures
	@exec .venv/bin/python -m tests.browser.screens

package:
	@bash scripts/package.sh

environment:
	@bash scripts/setup_venv.sh .venv auto app,notebooks
	@exec .venv/bin/python scripts/environment.py

benchmarks:
	@bash scripts/setup_venv.sh .venv auto app,notebooks
	@bash scripts/warm.sh
	@exec .venv/bin/python -m evaluation benchmarks

clean:
	rm -rf .venv .venv-other .venv.lock .venv-other.lock build dist site *.egg-info
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache test-results
	find toast_lab tests evaluation -name __pycache__ -type d -prune -exec rm -rf {} +
