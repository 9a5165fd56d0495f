#!/usr/bin/env bash
# Packs Terrace into one relocatable tar: programs, the shared libraries that they need, docs and licences. It runs from any
# folder of any x86-64 Linux with glibc 2.36 or later, and on GPUs where an NVIDIA driver is installed; nothing else is needed.
#
# Usage: deploy/bundle.sh [--build FOLDER] [--output FOLDER] [--folder-only]
#   --build FOLDER   a configured build tree (build/release); its programs are built first
#   --output FOLDER  where the tar goes (build/bundle)
#   --folder-only    leaves the folder that would be packed, and packs nothing
# The last line it prints is what it made. Exit codes: 0 made, 1 not, 2 wrong usage.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/release
output=$root/build/bundle
pack=1

trap 'echo "bundle.sh: line $LINENO failed: $BASH_COMMAND" >&2' ERR
fail() { echo "bundle.sh: $1" >&2; exit "${2:-1}"; }

while [ $# -gt 0 ]; do
  case $1 in
    --build | --output)
      [ $# -ge 2 ] || fail "$1 needs a folder" 2
      if [ "$1" = --build ]; then build=$2; else output=$2; fi
      shift 2
      ;;
    --folder-only) pack=0; shift ;;
    *) fail "got '$1', must be --build FOLDER, --output FOLDER or --folder-only" 2 ;;
  esac
done
[ -f "$build/CMakeCache.txt" ] || fail "$build is no build tree: configure one (cmake --preset release), or name it with --build"
for tool in readelf ldd strip; do
  command -v $tool >/dev/null || fail "$tool is not installed (Debian: binutils, libc-bin)"
done
build=$(cd "$build" && pwd)
mkdir -p "$output"
output=$(cd "$output" && pwd)

# What every Linux of that age has itself, and must have itself: the C library, and what comes with the driver.
system='^(ld-linux-x86-64\.so\.2|lib(c|m|dl|rt|pthread|util|resolv|mvec|anl)\.so\.[0-9]+|libcuda\.so\.1|libnvidia-.*)$'
newest_glibc=2.36

version() {
  local commit
  commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)
  echo "$(sed -n 's/^project(terrace VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt") $commit"
}

needed_by() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# The libraries of the programs of the build tree, theirs included, each under the name by which it is asked for; with CUDA also
# cuBLASLt, which is loaded when it is first needed (kernels/cuda/lazy_cublas.cc) and lies beside the CUDA runtime.
copy_libraries() {
  local program name path
  {
    for program in "$folder"/bin/*; do
      ldd "$build/bin/$(basename "$program")"
    done
    [ -z "$cuda" ] || echo "	libcublasLt.so.$cuda => $(find_cublas) (0x0)"
  } | sed -n 's/^[[:space:]]*\([^ ]*\) => \(.*\) (0x.*/\1 \2/p; s/^[[:space:]]*\([^ ]*\) => not found.*/\1 -/p' | sort -u |
    while read -r name path; do
      [[ $name =~ $system ]] && continue
      [ "$path" != - ] || fail "$name is not installed here: the programs of $build cannot be loaded"
      cp -L "$path" "$folder/lib/$name"
      chmod 644 "$folder/lib/$name"
      echo "$name $(realpath "$path")"
    done >"$folder.libraries"
  [ -s "$folder.libraries" ] || fail "the programs of $build name no libraries"
}

find_cublas() {
  local runtime
  runtime=$(ldd "$build/bin/terrace-rank" | sed -n 's/.*libcudart[^ ]* => \([^ ]*\) .*/\1/p')
  [ -f "$(dirname "$runtime")/libcublasLt.so.$cuda" ] || fail "there is no libcublasLt.so.$cuda beside $runtime"
  echo "$(dirname "$runtime")/libcublasLt.so.$cuda"
}

# The licence that a library is distributed under: its Debian package's copyright file, or NVIDIA's text beside the toolkit.
licence_of() {
  local path=$1 package file
  for file in "$path" "${path#/usr}"; do
    package=$(dpkg-query -S "$file" 2>/dev/null | head -n 1 | cut -d: -f1) || true
    if [ -n "$package" ] && [ -f "/usr/share/doc/$package/copyright" ]; then
      echo "$package /usr/share/doc/$package/copyright"
      return
    fi
  done
  local toolkit base
  toolkit=$(dirname "$(dirname "$path")")
  base=$(basename "$path" | sed 's/^lib\([a-z]*\).*/\1/' | tr '[:upper:]' '[:lower:]')
  [ "$base" = cudart ] && base=cuda_runtime
  for file in "$toolkit"/dist-info/nvidia_"${base%lt}"*/licenses/License.txt "$toolkit/EULA.txt" "$toolkit/../../EULA.txt" \
    "$toolkit/LICENSE.txt"; do
    if [ -f "$file" ]; then
      echo "nvidia-${base%lt} $file"
      return
    fi
  done
}

copy_licences() {
  local name path package file
  while read -r name path; do
    read -r package file <<<"$(licence_of "$path")"
    [ -n "${file:-}" ] || fail "found no licence text of $name ($path): it may not be packed without"
    cp -L "$file" "$folder/licenses/$package.txt"
    echo "lib/$name  licenses/$package.txt"
  done <"$folder.libraries" | sort >"$folder/licenses/INDEX"
}

copy_texts() {
  cp "$root/README.md" "$root/LICENSE" "$root/CHANGELOG.md" "$folder"
  cp -r "$root/docs" "$folder/docs"
  mkdir -p "$folder/deploy" "$folder/tests"
  cp "$root/deploy/demo.sh" "$folder/deploy"
  # The text that the demo trains on.
  if command -v bible >/dev/null; then
    mkdir -p "$folder/share"
    bible -f gen1:1-rev22:21 >"$folder/share/bible.txt"
  fi
  if [ -n "$cuda" ]; then
    mkdir -p "$folder/tests/gpu"
    cp "$root"/tests/gpu/*.py "$root/tests/gpu/run.sh" "$folder/tests/gpu"
  fi
  version >"$folder/VERSION"
}

# Every program and library finds what it needs in the bundle or in any Linux, and nowhere else.
check() {
  local file name path glibc
  for file in "$folder"/bin/* "$folder"/lib/*; do
    for name in $(needed_by "$file"); do
      [ -f "$folder/lib/$name" ] || [[ $name =~ $system ]] || fail "$file needs $name, which is not in the bundle"
    done
    for path in $(readelf -d "$file" | sed -n 's/.*R\(UN\)\?PATH).*\[\(.*\)\]/\2/p' | tr ':' ' '); do
      [[ $path == '$ORIGIN'* ]] || fail "$file looks for libraries in $path: the bundle could not be moved"
    done
    glibc=$(readelf -V "$file" | sed -n 's/.*Name: GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -n 1)
    [ "$(printf '%s\n' "${glibc:-0}" $newest_glibc | sort -V | tail -n 1)" = $newest_glibc ] ||
      fail "$file needs glibc $glibc, which is newer than $newest_glibc: build it on Debian 12"
  done
}

cmake --build "$build" --target bundle_programs >"$output/build.log" 2>&1 ||
  { tail -n 20 "$output/build.log" >&2; fail "the build failed; all of it is in $output/build.log"; }
cuda=$(ldd "$build/bin/terrace-rank" | sed -n 's/.*libcudart\.so\.\([0-9]*\) .*/\1/p')  # its major version, or nothing
read -r number _ <<<"$(version)"
name=terrace-$number-linux-x86_64
[ -n "$cuda" ] && name=$name-cuda$cuda
folder=$output/$name
rm -rf "$folder"
mkdir -p "$folder/lib" "$folder/licenses"
cmake --install "$build" --component bundle --prefix "$folder" --strip >/dev/null
copy_libraries
copy_licences
rm "$folder.libraries"
copy_texts
check
[ $pack = 1 ] || { echo "$folder"; exit 0; }

# The same files give the same bytes.
date=$(git -C "$root" log -1 --format=%cI 2>/dev/null || echo 2026-01-01)
tar -C "$output" --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" -cf - "$name" | gzip -n -3 >"$folder.tar.gz.part"
mv "$folder.tar.gz.part" "$folder.tar.gz"
rm -rf "$folder"
echo "$folder.tar.gz"
