#!/usr/bin/env bash
# Compile the kernels once, on all cores, ahead of the first click. They are kept on disk; where all are there this
# takes a moment.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m toast_lab.prepare
