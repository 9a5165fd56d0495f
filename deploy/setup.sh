#!/usr/bin/env bash
# Installs what Terrace needs on Debian 12 (deploy/packages.txt) and builds it into build/release.
# Usage: deploy/setup.sh [--with-tests]
set -euo pipefail
cd "$(dirname "$0")/.."

with_tests=OFF
[ "${1:-}" = "--with-tests" ] && with_tests=ON

missing=()
while read -r package; do
  [ -n "$package" ] || continue
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done < deploy/packages.txt
if [ "${#missing[@]}" -gt 0 ]; then
  echo "installing ${#missing[@]} Debian packages: ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup.sh: run as root, or install sudo, to add: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

cmake --preset release -DTERRACE_TESTS=$with_tests >/dev/null
cmake --build build/release
