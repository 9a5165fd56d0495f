#!/bin/sh
# Prints what is in this image as SPDX 2.3 (tag: value): Debian's packages, as dpkg knows them, and the libraries of the bundle.
# Usage: sbom.sh VERSION
set -eu
cat <<HEAD
SPDXVersion: SPDX-2.3
DataLicense: CC0-1.0
SPDXID: SPDXRef-DOCUMENT
DocumentName: terrace-$1
DocumentNamespace: https://spdx.org/spdxdocs/terrace-$1-$(sha256sum /usr/lib/terrace/bin/terrace-rank | cut -c1-16)
Creator: Tool: terrace-sbom
Created: $(date -u -r /usr/lib/terrace/VERSION +%Y-%m-%dT%H:%M:%SZ)

PackageName: terrace
SPDXID: SPDXRef-terrace
PackageVersion: $1
PackageDownloadLocation: NOASSERTION
FilesAnalyzed: false
PackageLicenseConcluded: Apache-2.0
Relationship: SPDXRef-DOCUMENT DESCRIBES SPDXRef-terrace
HEAD
dpkg-query -W -f '${Package} ${Version} ${Architecture}\n' | while read -r name version architecture; do
  printf '\nPackageName: %s\nSPDXID: SPDXRef-deb-%s\nPackageVersion: %s\nPackageDownloadLocation: NOASSERTION\nFilesAnalyzed: false\n' \
    "$name" "$(echo "$name" | tr -c 'A-Za-z0-9.\n' -)" "$version"
  printf 'ExternalRef: PACKAGE-MANAGER purl pkg:deb/debian/%s@%s?arch=%s\n' "$name" "$(echo "$version" | sed 's/+/%2B/g; s/:/%3A/g')" "$architecture"
done
# INDEX of the bundle's licences: lib/NAME  licenses/PACKAGE.txt
while read -r library licence; do
  name=$(basename "$library")
  [ -f "/usr/lib/terrace/lib/$name" ] || { echo "sbom.sh: licenses/INDEX names $library, which is not in the bundle" >&2; exit 1; }
  printf '\nPackageName: %s\nSPDXID: SPDXRef-lib-%s\nPackageDownloadLocation: NOASSERTION\nFilesAnalyzed: false\n' \
    "$name" "$(echo "$name" | tr -c 'A-Za-z0-9.\n' -)"
  printf 'PackageChecksum: SHA256: %s\nPackageComment: <text>licence in /usr/lib/terrace/%s</text>\nRelationship: SPDXRef-terrace CONTAINS SPDXRef-lib-%s\n' \
    "$(sha256sum "/usr/lib/terrace/lib/$name" | cut -d' ' -f1)" "$licence" "$(echo "$name" | tr -c 'A-Za-z0-9.\n' -)"
done </usr/lib/terrace/licenses/INDEX
