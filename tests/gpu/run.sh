#!/usr/bin/env bash
# The checks of the CUDA backend, on a machine with an NVIDIA GPU. Needs sources, CMake, a C++20 compiler and the CUDA toolkit,
# nothing else of Terrace's libraries.
#
# Usage: tests/gpu/run.sh [part...]    parts: build conformance repeat sanitizer; without any: all of them
#   TERRACE_GPU_BUILD   where to build (build/gpu)
#   TERRACE_GPU_OUT     where results go (the build folder)
#   TERRACE_GPU_FILTER  only cases with this in their name
# Ends within 10 minutes. Exit codes: 0 passed, 1 failed, 2 wrong usage or no compiler, 77 no GPU here.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${TERRACE_GPU_BUILD:-build/gpu}
out=${TERRACE_GPU_OUT:-$build}
filter=${TERRACE_GPU_FILTER:-}
deadline=$((SECONDS + 570))
failed=0

left() { local s=$((deadline - SECONDS)); echo $((s > 1 ? s : 1)); }

build() {
  if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "run.sh: no nvcc in PATH or /usr/local/cuda/bin: install the CUDA toolkit" >&2
    exit 2
  fi
  timeout "$(left)" cmake -S tests/gpu/standalone -B "$build" >"$out/configure.log" 2>&1 &&
    timeout "$(left)" cmake --build "$build" -j "$(nproc)" >"$out/build.log" 2>&1 && return
  tail -n 30 "$out/configure.log" "$out/build.log" 2>/dev/null
  echo "run.sh: the build failed; all of it is in $out/build.log" >&2
  exit 2
}

# Runs the program with a share of the time that is left. Its exit code says what became of it.
check() {
  local name=$1 seconds=$2
  shift 2
  [ "$(left)" -lt "$seconds" ] && seconds=$(left)
  echo "== $name"
  timeout "$((seconds + 20))" "$@" --seconds "$seconds"
  local code=$?
  [ $code -eq 77 ] && exit 77
  if [ $code -ne 0 ]; then
    echo "run.sh: $name failed (exit code $code)"
    failed=1
  fi
}

conformance() {
  check conformance 240 "$build/bin/gpu_conformance" --filter "$filter" --json "$out/conformance.json"
}

# The same seed twice: each run says what it says whoever ran before.
repeat() {
  check repeat 100 "$build/bin/gpu_conformance" --filter "$filter" --rounds 1 --seed 20261121 --json "$out/repeat.json"
}

sanitizer() {
  local tool
  tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  if [ ! -x "$tool" ]; then
    echo "== sanitizer: not run, compute-sanitizer is not installed"
    return
  fi
  for kind in memcheck racecheck synccheck; do
    # Our kernels only: the library's are not ours to judge.
    check "sanitizer $kind" 60 "$tool" --tool $kind --error-exitcode 1 --kernel-name kernel_substring=terrace \
      "$build/bin/gpu_conformance" --filter "$filter" --elements 3000 --rounds 1
  done
}

mkdir -p "$out" || exit 2
parts=("$@")
[ ${#parts[@]} -eq 0 ] && parts=(build conformance repeat sanitizer)
for part in "${parts[@]}"; do
  case $part in
    build | conformance | repeat | sanitizer) $part ;;
    *)
      echo "run.sh: there is no part '$part': build, conformance, repeat or sanitizer" >&2
      exit 2
      ;;
  esac
done
[ $failed -eq 0 ] && echo "run.sh: passed in ${SECONDS} s"
exit $failed
