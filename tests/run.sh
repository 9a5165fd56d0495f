#!/usr/bin/env bash
# Sets up everything, builds, and passes the tests. Slower suites are named in docs/testing.md and run by hand.
# Usage: tests/run.sh [ctest arguments, for example -R pack]
set -euo pipefail
cd "$(dirname "$0")/.."
deploy/setup.sh --with-tests
python3 tests/tidy/tidy_test.py
ctest --test-dir build/release --output-on-failure --timeout 300 --parallel 2 -LE slow "$@"
