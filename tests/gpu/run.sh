#!/usr/bin/env bash
# The checks of the CUDA backend, on a machine with an NVIDIA GPU: in an unpacked bundle, which has all that they need but Python,
# or in the sources with CMake, a C++20 compiler and the CUDA toolkit.
#
# Usage: tests/gpu/run.sh [part...]    without any: all of them, in this order, each with its share of 10 minutes and with what
#                                      those that end early leave; one alone has all of the time
#   build        the programs below, from the sources; a bundle has them
#   conformance  every op against the reference in double, finite differences, the same bytes again
#   repeat       the same with one seed for all runs
#   sanitizer    memcheck, racecheck and synccheck on the small cases (compute-sanitizer)
#   parity       a job's losses on the GPU and on the CPU
#   memory       the plan's bytes and the driver's
#   offload      states on the host and on NVMe
#   shared       several ranks on one GPU
#   rates        what terrace profile measures, twice
#   kernels      speed of products, attention and memory-bound kernels
#   bench        tokens a second against PyTorch; bench:MODEL for one model (tests/gpu/models.py)
#   large        by name only, one at a time: large:7b trains what fits with its states on the host, large:13b what does not fit
#   TERRACE_GPU_BUILD   where to build (build/gpu)
#   TERRACE_GPU_OUT     where JSON and logs go (build/gpu, in a bundle ./gpu-results)
#   TERRACE_GPU_FILTER  only kernels with this in their case's name
#   TERRACE_GPU_DEVICE  cpu: a rehearsal of the parts that can be rehearsed, with small sizes
#   TERRACE_BIN         folder of terrace and the other programs (bin of a bundle, build/release/bin)
#   TERRACE_PYTHON      a Python, for bench one with torch (python3)
# Ends within 10 minutes. Exit codes: 0 all of it passed, 1 something failed, 2 wrong usage or no compiler, 77 nothing failed and
# something was not run, for want of a GPU or of something else that one line names.
set -uo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/tests/gpu
device=${TERRACE_GPU_DEVICE:-cuda}
python=${TERRACE_PYTHON:-python3}
filter=${TERRACE_GPU_FILTER:-}
if [ -x bin/gpu_conformance ]; then
  programs=$PWD/bin
  out=${TERRACE_GPU_OUT:-$PWD/gpu-results}
else
  build=${TERRACE_GPU_BUILD:-build/gpu}
  programs=$build/bin
  out=${TERRACE_GPU_OUT:-$build}
fi
binaries=${TERRACE_BIN:-$([ -x bin/terrace ] && echo bin || echo build/release/bin)}
deadline=$((SECONDS + 570))
all=(build conformance repeat sanitizer parity memory offload shared rates kernels bench)
declare -A share=([build]=300 [conformance]=80 [repeat]=30 [sanitizer]=75 [parity]=55 [memory]=25 [offload]=40 [shared]=50
  [rates]=25 [kernels]=40 [bench]=150 [large]=550)
named=(large)
least=10  # seconds without which a part is not begun
declare -A result=() took=()

left() { local s=$((deadline - SECONDS)); echo $((s > 1 ? s : 1)); }

sanitizer_tool() { command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer; }

# Parts that will not run leave their shares to the others.
trim_shares() {
  [ -n "${build:-}" ] || share[build]=0
  [ -x "$(sanitizer_tool)" ] || share[sanitizer]=1
  "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null || share[bench]=1
}

# What a part may take: its share at least, and what those behind it leave of the time.
seconds_of() {
  local seconds name behind=0 rest=0
  for name in "${parts[@]}"; do
    name=${name%%:*}
    [ $behind -eq 1 ] && rest=$((rest + share[$name]))
    [ "$name" = "$1" ] && behind=1
  done
  seconds=$(($(left) - rest))
  [ "$seconds" -lt "${share[$1]}" ] && seconds=${share[$1]}
  [ "$(left)" -lt "$seconds" ] && seconds=$(left)
  echo "$seconds"
}

build() {
  [ -n "${build:-}" ] || return 0  # a bundle
  if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "run.sh: no nvcc in PATH or /usr/local/cuda/bin: install the CUDA toolkit, or take a bundle" >&2
    return 2
  fi
  timeout "$(seconds_of build)" cmake -S tests/gpu/standalone -B "$build" >"$out/configure.log" 2>&1 &&
    timeout "$(seconds_of build)" cmake --build "$build" -j "$(nproc)" >"$out/build.log" 2>&1 && return 0
  tail -n 30 "$out/configure.log" "$out/build.log" 2>/dev/null
  echo "run.sh: the build failed; all of it is in $out/build.log" >&2
  return 2
}

# A program that keeps to --seconds itself; a little later it is ended.
run() {
  local seconds=$1
  shift
  timeout -k 5 "$((seconds + 20))" "$@" --seconds "$seconds"
}

rehearsed() {
  [ "$device" = cuda ] && return 0
  echo "$1: not run: there is nothing to rehearse on the CPU" >&2
  return 77
}

conformance() {
  rehearsed conformance || return
  local seconds code
  seconds=$(seconds_of conformance)
  run $((seconds * 3 / 4)) "$programs/gpu_conformance" --filter "$filter" --json "$out/conformance.json" || return
  "$programs/gpu_conformance" --attention wgmma --filter "$filter" --list | grep -q . || return 0
  # By itself and last: a kernel that traps or hangs there takes nothing else along.
  echo "-- attention on sm_90a's own instructions"
  run $((seconds / 4)) "$programs/gpu_conformance" --attention wgmma --filter "$filter" --json "$out/conformance-wgmma.json"
  code=$?
  [ $code -eq 77 ] && return 0
  return $code
}

# The same seed in all runs: each says what it says whoever ran before.
repeat() {
  rehearsed repeat || return
  run "$(seconds_of repeat)" "$programs/gpu_conformance" --filter "$filter" --rounds 1 --seed 20261121 --json "$out/repeat.json"
}

sanitizer() {
  rehearsed sanitizer || return
  local tool code=0 one kind
  tool=$(sanitizer_tool)
  if [ ! -x "$tool" ]; then
    echo "sanitizer: not run: compute-sanitizer is not installed (it is part of the CUDA toolkit)" >&2
    return 77
  fi
  for kind in memcheck racecheck synccheck; do
    echo "-- $kind"
    # Our kernels only: the library's are not ours to judge.
    run $(($(seconds_of sanitizer) * 5 / 18)) "$tool" --tool $kind --error-exitcode 1 --kernel-name kernel_substring=terrace \
      "$programs/gpu_conformance" --filter "$filter" --elements 3000 --rounds 1 --brief
    one=$?
    [ $one -ne 0 ] && code=$one
  done
  "$programs/gpu_conformance" --attention wgmma --filter "$filter" --list | grep -q . || return $code
  echo "-- memcheck of attention on sm_90a's own instructions"
  run $(($(seconds_of sanitizer) / 6)) "$tool" --tool memcheck --error-exitcode 1 --kernel-name kernel_substring=terrace \
    "$programs/gpu_conformance" --attention wgmma --filter "$filter" --elements 3000 --rounds 1 --brief
  one=$?
  [ $one -ne 0 ] && [ $one -ne 77 ] && code=$one
  return $code
}

# One of the parts in Python.
part() {
  local name=$1
  shift
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    echo "$name: not run: $python is no Python 3.9 or later; install one, or name it in TERRACE_PYTHON" >&2
    return 77
  fi
  local script=$name
  [ "$name" = bench ] && script=bench_pytorch
  run "$(seconds_of "$name")" "$python" -B "$here/$script.py" --bin "$binaries" --device "$device" --json "$out/$name.json" "$@"
}

kernels() {
  run "$(seconds_of kernels)" "$programs/gpu_kernels" --device "$device" --filter "$filter" --json "$out/kernels.json"
}

summary() {
  local name text verdict=$1 comma=""
  echo
  printf '%-22s %8s  %s\n' part seconds result
  printf '{"device":"%s","exit_code":%d,"seconds":%d,"parts":{' "$device" "$verdict" "$SECONDS" >"$out/summary.json"
  for name in "${parts[@]}"; do
    case ${result[$name]} in
      0) text=passed ;;
      77) text='not run' ;;
      124 | 137) text='FAILED: out of time' ;;
      *) text="FAILED (exit code ${result[$name]})" ;;
    esac
    printf '%-22s %8d  %s\n' "$name" "${took[$name]}" "$text"
    printf '%s"%s":{"exit_code":%d,"seconds":%d}' "$comma" "$name" "${result[$name]}" "${took[$name]}" >>"$out/summary.json"
    comma=,
  done
  printf '}}\n' >>"$out/summary.json"
  case $verdict in
    0) echo "run.sh: passed in ${SECONDS} s" ;;
    77) echo "run.sh: nothing failed, but not all was run" ;;
    *) echo "run.sh: FAILED" ;;
  esac
}

parts=("$@")
[ ${#parts[@]} -eq 0 ] && parts=("${all[@]}")
for name in "${parts[@]}"; do
  if [[ " ${all[*]} ${named[*]} " != *" ${name%%:*} "* ]] || [[ $name == *:* && $name != bench:* && $name != large:* ]]; then
    echo "run.sh: there is no part '$name': ${all[*]}, bench:MODEL, large:7b or large:13b" >&2
    exit 2
  fi
done
trim_shares
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
verdict=0
for name in "${parts[@]}"; do
  echo "== $name"
  begin=$SECONDS
  if [ "$(left)" -lt $least ]; then
    echo "$name: not run: no time is left; run it by name" >&2
    result[$name]=77
    took[$name]=0
    [ $verdict -eq 0 ] && verdict=77
    continue
  fi
  case $name in
    bench:*) part bench --model "${name#bench:}" ;;
    large:*) part large --shape "${name#large:}" ;;
    parity | memory | offload | shared | rates | bench | large) part "$name" ;;
    *) "$name" ;;
  esac
  result[$name]=$?
  took[$name]=$((SECONDS - begin))
  [ "$name" = build ] && [ "${result[$name]}" -ne 0 ] && exit "${result[$name]}"
  case ${result[$name]} in
    0) ;;
    77) [ $verdict -eq 0 ] && verdict=77 ;;
    *) verdict=1 ;;
  esac
done
summary $verdict
exit $verdict
