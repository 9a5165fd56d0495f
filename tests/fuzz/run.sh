#!/usr/bin/env bash
# Builds the fuzzers with clang into build/fuzz and runs each for SECONDS (60) on what it has found so far (build/fuzz/found/TARGET)
# and the stored corpus. An input that breaks a reader is left in build/fuzz/broken; mend the reader and put it into
# tests/fuzz/corpus/TARGET.
# Usage: tests/fuzz/run.sh [SECONDS [TARGET...]]
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds="${1:-60}"
[ $# -gt 0 ] && shift
[[ "$seconds" =~ ^[0-9]+$ ]] || { echo "run.sh: got $seconds seconds, must be a whole number" >&2; exit 2; }
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/corpus)
if ! command -v clang++ >/dev/null; then
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends clang >/dev/null
fi

cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" -DTERRACE_SANITIZE=address,undefined -DTERRACE_FUZZ=ON -DTERRACE_PCH=OFF -DTERRACE_CUDA=OFF >/dev/null
cmake --build build/fuzz --target terrace_fuzz

failed=()
mkdir -p build/fuzz/broken
for target in "${targets[@]}"; do
  found="build/fuzz/found/$target"
  mkdir -p "$found"
  echo "== $target, $seconds s"
  TERRACE_FUZZ_TARGET="$target" build/fuzz/bin/terrace_fuzz "$found" "tests/fuzz/corpus/$target" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=4096 -max_len=65536 -print_final_stats=1 -artifact_prefix="build/fuzz/broken/$target-" >"build/fuzz/$target.log" 2>&1 ||
    failed+=("$target")
  grep "stat::number_of_executed_units\|SUMMARY\|broken:" "build/fuzz/$target.log" | sed 's/^/  /' || true
done
[ ${#failed[@]} -eq 0 ] || { echo "broken: ${failed[*]}; see build/fuzz/TARGET.log and build/fuzz/broken" >&2; exit 1; }
