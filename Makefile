# Everything runs from an environment of its own, .venv, made on first use from Python 3.11 or newer.
#   make explore [PORT=5006] [PYTHON=python3.12]
PORT ?= 5006
export PYTHON

.PHONY: explore test lint benchmarks clean help

help:
	@echo "make explore     install what is missing and open the explorer on http://127.0.0.1:$(PORT)"
	@echo "make test        all checks and tests"
	@echo "make lint        only the static checks"
	@echo "make benchmarks  timings and accuracy, as ratios"
	@echo "make clean       remove environments and caches"

explore:
	@bash scripts/setup_venv.sh .venv auto app,notebooks
	@bash scripts/warm.sh
	@exec .venv/bin/toast-lab serve --port $(PORT)

test:
	@bash scripts/test.sh

lint:
	@bash scripts/setup_venv.sh .venv auto app,notebooks,dev
	@bash scripts/lint.sh

benchmarks:
	@bash scripts/setup_venv.sh .venv auto app,notebooks
	@bash scripts/warm.sh
	@exec .venv/bin/python -m tests.benchmarks

clean:
	rm -rf .venv .venv-other .venv.lock .venv-other.lock build dist *.egg-info
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache test-results
	find toast_lab tests -name __pycache__ -type d -prune -exec rm -rf {} +
