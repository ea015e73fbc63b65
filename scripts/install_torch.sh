#!/usr/bin/env bash
# Install PyTorch for the tests of its frontend, if a CPU wheel of the pinned version can be installed within a
# minute. Otherwise these tests are skipped: wheels with CUDA are gigabytes that no test here needs.
#   install_torch.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."

python="$1/bin/python"
torch="$(grep -m 1 '^torch==' constraints.txt)"
torchax="$(grep -m 1 '^torchax==' constraints.txt)"
if "$python" - "$torch" "$torchax" <<'PY' 2>/dev/null; then
import importlib.metadata, sys
for pin in sys.argv[1:]:
    name, version = pin.split("==")
    if importlib.metadata.version(name).split("+")[0] != version:
        raise SystemExit(1)
PY
    echo "== PyTorch: $torch and $torchax are there"
    exit 0
fi

skipped() {
    echo "== PyTorch: $1; the tests of its frontend are skipped"
    exit 0
}

pip=("$python" -m pip install -q --no-compile --disable-pip-version-check --constraint constraints.txt)
# A dry run tells which wheel would be installed; nothing is built, and dependencies do not matter yet.
would="$(timeout 20 "${pip[@]}" --dry-run --no-deps --only-binary :all: --report - "$torch" 2>/dev/null || true)"
if ! grep -Eq '"version": *"[0-9.]+\+cpu"' <<<"$would" && [ "$(uname -s)" != Darwin ]; then
    skipped "no CPU wheel of $torch is to be had here"
fi
started=$SECONDS
timeout 60 "${pip[@]}" "$torch" "$torchax" 2>/dev/null || skipped "installing $torch and $torchax failed or took over a minute"
echo "== PyTorch: installed $torch and $torchax in $((SECONDS - started)) s"
