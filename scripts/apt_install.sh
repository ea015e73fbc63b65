#!/usr/bin/env bash
# Install Debian or Ubuntu packages: apt_install.sh PACKAGE... Uses sudo only if not run as root.
set -euo pipefail

if ! command -v apt-get >/dev/null 2>&1; then
    echo "apt-get is not here; please install with your system's package manager: $*" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
