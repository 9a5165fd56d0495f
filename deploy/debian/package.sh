#!/usr/bin/env bash
# Packs the bundle as a Debian package: /usr/lib/terrace with links in /usr/bin, systemd units, a system user.
#
# Usage: deploy/debian/package.sh [--build FOLDER] [--output FOLDER] [--bundle FOLDER]
#   --build FOLDER   a configured build tree (build/release), of which deploy/bundle.sh makes the bundle
#   --output FOLDER  where the package goes (build/deb)
#   --bundle FOLDER  an unpacked bundle instead of a build tree
# The last line it prints is the package. Exit codes: 0 made, 1 not, 2 wrong usage.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build/release
output=$root/build/deb
bundle=

fail() { echo "package.sh: $1" >&2; exit "${2:-1}"; }

while [ $# -gt 0 ]; do
  case $1 in
    --build | --output | --bundle)
      [ $# -ge 2 ] || fail "$1 needs a folder" 2
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    *) fail "got '$1', must be --build FOLDER, --output FOLDER or --bundle FOLDER" 2 ;;
  esac
done
for tool in cpack dpkg-deb gzip; do
  command -v $tool >/dev/null || fail "$tool is not installed (Debian: cmake, dpkg, gzip)"
done
mkdir -p "$output"
output=$(cd "$output" && pwd)
[ -n "$bundle" ] || bundle=$("$root/deploy/bundle.sh" --build "$build" --output "$output" --folder-only | tail -n 1)
[ -x "$bundle/bin/terrace" ] || fail "$bundle is no unpacked bundle: it has no bin/terrace"
bundle=$(cd "$bundle" && pwd)
read -r version _ <"$bundle/VERSION"

tree=$output/tree
rm -rf "$tree"
install -d "$tree"/usr/{bin,lib/systemd/system,lib/sysusers.d,lib/tmpfiles.d,share/doc/terrace,share/lintian/overrides} "$tree/etc/default"
cp -r "$bundle" "$tree/usr/lib/terrace"
for program in terrace terrace-coordinator terrace-worker terrace-rank; do
  ln -s ../lib/terrace/bin/$program "$tree/usr/bin/$program"
done
install -m 644 "$root"/deploy/systemd/*.service "$tree/usr/lib/systemd/system"
install -m 644 "$root/deploy/systemd/sysusers.conf" "$tree/usr/lib/sysusers.d/terrace.conf"
install -m 644 "$root/deploy/systemd/tmpfiles.conf" "$tree/usr/lib/tmpfiles.d/terrace.conf"
for service in coordinator worker; do
  install -m 644 "$root/deploy/systemd/terrace-$service.default" "$tree/etc/default/terrace-$service"
done
install -m 644 "$root/deploy/debian/copyright" "$tree/usr/share/doc/terrace/copyright"
install -m 644 "$root/deploy/debian/lintian-overrides" "$tree/usr/share/lintian/overrides/terrace"
printf 'terrace (%s) unstable; urgency=medium\n\n  * What changed is in /usr/lib/terrace/CHANGELOG.md.\n\n -- Terrace maintainers <terrace@localhost>  %s\n' \
  "$version" "$(LC_ALL=C date -R -u -d "@$(stat -c %Y "$bundle/VERSION")")" | gzip -n -9 >"$tree/usr/share/doc/terrace/changelog.gz"
find "$tree" -type d -exec chmod 755 {} +
find "$tree" -type f -exec chmod go-w,a+r {} +

(cd "$output" && TERRACE_FOLDER=$tree TERRACE_VERSION=$version cpack --config "$root/deploy/debian/cpack.cmake" -B "$output" \
  >"$output/cpack.log" 2>&1) || { tail -n 20 "$output/cpack.log" >&2; fail "cpack failed; all of it is in $output/cpack.log"; }
rm -rf "$tree" "$output/_CPack_Packages"
echo "$output/terrace_${version}_amd64.deb"
