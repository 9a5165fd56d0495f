// SPDX-License-Identifier: Apache-2.0
#include "tests/system/mapped_bytes.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

namespace terrace {

std::map<uintptr_t, int64_t> WritableMappings() {
  std::map<uintptr_t, int64_t> mappings;
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    uintptr_t begin = 0, end = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, access) == 3 &&
        access[1] == 'w')
      mappings[begin] = static_cast<int64_t>(end - begin);
  }
  return mappings;
}

}  // namespace terrace
