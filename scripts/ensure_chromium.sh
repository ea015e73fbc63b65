#!/usr/bin/env bash
# The browser tests use the system's Chromium. Install it with apt if no working one is found.
set -euo pipefail
cd "$(dirname "$0")/.."

working_browser() {
    local name
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null 2>&1 && "$name" --version >/dev/null 2>&1; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

if ! working_browser >/dev/null; then
    echo "== Chromium is missing: installing it with apt"
    bash scripts/apt_install.sh chromium
fi
if ! browser="$(working_browser)"; then
    echo "No working Chromium, though apt reported success. Try: chromium --version" >&2
    exit 1
fi
echo "== browser: $browser"
