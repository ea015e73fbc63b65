#!/usr/bin/env bash
# Run the static checks: style, format, import contracts, types.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== ruff"
.venv/bin/ruff check --quiet .
.venv/bin/ruff format --check .
echo "== import contracts"
.venv/bin/lint-imports
echo "== types"
.venv/bin/mypy
