#!/usr/bin/env bash
# Compile the numba kernels once, ahead of the first click. Numba keeps them on disk beside their sources;
# the stamp saves even the imports that asking numba would cost.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -f toast_lab/warm.py ]; then exit 0; fi
stamp=.venv/.warmed
wanted="$({ cat .venv/.installed-app-notebooks toast_lab/warm.py
    grep -rl --include='*.py' numba toast_lab | sort | xargs cat; } | cksum)"
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi
echo "== compiling the numba kernels (once)"
# Two processes: what both need is compiled twice, yet it is done sooner.
.venv/bin/python -m toast_lab.warm automap alpa exhaustive &
other=$!
.venv/bin/python -m toast_lab.warm mcts beam random manual
wait "$other"
echo "$wanted" >"$stamp"
