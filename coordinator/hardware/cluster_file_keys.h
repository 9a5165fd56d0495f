// The table of the keys of a cluster.yaml: what each is called, accepts and means. The reader
// (cluster_file.cc), the JSON schema (docs/cluster.schema.json) and its test are read off it.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/hardware/catalogue.h"

namespace terrace {

enum class ClusterKeyKind {
  kName,    // a word of the user's
  kDevice,  // a device of the catalogue, by name or alias
  kCount,   // a whole number in [low, high]
  kReal,    // in [low, high]
  kBytes,   // 80GiB, in [low, high]; of a rate: a second
  kLink,    // a name of the link catalogue, or bytes a second as collectives reach them
};
struct ClusterKey {
  std::string_view path;
  ClusterKeyKind kind;
  double low = 0, high = 0;
  std::string_view meaning;  // one line for people
};

const std::vector<ClusterKey>& ClusterKeys();
// Of a key of the kind kLink.
CatalogueLink::Kind LinkKindOf(const ClusterKey& key);

std::string ClusterJsonSchema();

}  // namespace terrace
