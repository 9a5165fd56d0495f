// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/process_memory.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace terrace {
namespace {

struct Mapping {
  std::string path;  // empty: anonymous
  bool executable = false;
  bool arena = false;
  int64_t resident_bytes = 0;
  int64_t anonymous_bytes = 0;  // written pages of a private mapping of a file are anonymous too
};

// "7f00-7f10 r-xp 00000000 08:01 1234   /usr/lib/libc.so"
bool ParseHead(const std::string& line, Mapping* mapping) {
  uint64_t start, end, offset, inode;
  char permissions[8], device[32];
  int path_at = 0;
  if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %31s %" SCNu64 " %n",
                  &start, &end, permissions, &offset, device, &inode, &path_at) < 6) {
    return false;
  }
  if (inode != 0) mapping->path = line.substr(path_at);
  mapping->executable = permissions[2] == 'x';
  return true;
}

std::vector<Mapping> ReadMappings() {
  std::vector<Mapping> mappings;
  std::ifstream smaps("/proc/self/smaps");
  for (std::string line; std::getline(smaps, line);) {
    Mapping mapping;
    int64_t kib;
    if (ParseHead(line, &mapping)) {
      // An arena is the mapping behind the guard page that carries its name
      // (worker/memory/arena.h).
      mapping.arena =
          !mappings.empty() && mappings.back().path.rfind("/memfd:terrace-arena-", 0) == 0;
      mappings.push_back(mapping);
    } else if (std::sscanf(line.c_str(), "Rss: %" SCNd64, &kib) == 1) {
      mappings.back().resident_bytes = kib * 1024;
    } else if (std::sscanf(line.c_str(), "Anonymous: %" SCNd64, &kib) == 1) {
      mappings.back().anonymous_bytes = kib * 1024;
    }
  }
  return mappings;
}

}  // namespace

int64_t ExternalBytes() {
  const std::vector<Mapping> mappings = ReadMappings();
  std::set<std::string>
      code;  // files that are mapped as code anywhere: the program and its libraries
  for (const Mapping& mapping : mappings) {
    if (mapping.executable) code.insert(mapping.path);
  }
  int64_t bytes = 0;
  for (const Mapping& mapping : mappings) {
    if (mapping.arena) continue;
    bytes += code.count(mapping.path) > 0 || mapping.path.empty() ? mapping.resident_bytes
                                                                  : mapping.anonymous_bytes;
  }
  return bytes;
}

}  // namespace terrace
