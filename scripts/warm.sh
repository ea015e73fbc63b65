#!/usr/bin/env bash
# Compile the kernels on all cores before the first click needs them. They are kept on disk, so this takes only a moment
# if all of them are there.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m toast_lab.prepare
