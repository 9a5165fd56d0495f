#!/usr/bin/env bash
# Builds a container image of Terrace with Podman: the CUDA image of a bundle with the CUDA backend, the CPU image of one without.
#
# Usage: deploy/containers/build.sh [--bundle FOLDER] [--tag NAME] [options of podman build, such as --build-arg BASE=IMAGE]
#   --bundle FOLDER  an unpacked bundle; without it deploy/bundle.sh makes one of build/release
#   --tag NAME       of the image (localhost/terrace)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bundle=
tag=localhost/terrace
while [ $# -gt 0 ]; do
  case $1 in
    --bundle) bundle=$2; shift 2 ;;
    --tag) tag=$2; shift 2 ;;
    *) break ;;
  esac
done
[ -n "$bundle" ] || bundle=$("$root/deploy/bundle.sh" --folder-only | tail -n 1)
[ -x "$bundle/bin/terrace" ] || { echo "build.sh: $bundle is no unpacked bundle: it has no bin/terrace" >&2; exit 1; }
read -r version revision <"$bundle/VERSION"
file=Dockerfile
if compgen -G "$bundle/lib/libcublasLt.so.*" >/dev/null; then file=Dockerfile.cuda; fi
install -d "$bundle/container"
install -m 755 "$root"/deploy/containers/{healthcheck,drain,sbom.sh} "$bundle/container"
install -m 644 "$root/deploy/containers/demo.yaml" "$bundle/container"
podman build -f "$root/deploy/containers/$file" -t "$tag" --build-arg VERSION="$version" --build-arg REVISION="$revision" \
  --format docker "$@" "$bundle"
