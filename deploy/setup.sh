#!/usr/bin/env bash
# Installs what Terrace needs on Debian 12 (deploy/packages.txt) and builds it into build/release; with the tests also what they
# need (deploy/packages_test.txt), whose services are neither started nor enabled.
# Usage: deploy/setup.sh [--with-tests]
set -euo pipefail
cd "$(dirname "$0")/.."

with_tests=OFF
[ "${1:-}" = "--with-tests" ] && with_tests=ON

lists=(deploy/packages.txt)
[ "$with_tests" = ON ] && lists+=(deploy/packages_test.txt)
missing=()
while read -r package; do
  [ -n "$package" ] || continue
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done < <(cat "${lists[@]}")
if [ "${#missing[@]}" -gt 0 ]; then
  echo "installing ${#missing[@]} Debian packages: ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup.sh: run as root, or install sudo, to add: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  # Packages of daemons start them unless this says no; one that is there has its own say.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  for package in "${missing[@]}"; do  # nor at the next boot
    grep -qx "$package" deploy/packages_test.txt || continue
    [ -e "/lib/systemd/system/$package.service" ] || continue
    "${as_root[@]}" systemctl --quiet disable "$package.service" 2>/dev/null || true
  done
fi

cmake --preset release -DTERRACE_TESTS=$with_tests >/dev/null
cmake --build build/release
