// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_checksums.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

uint64_t HashOf(const std::byte* page) {
  return std::max<uint64_t>(XXH3_64bits(page, NvmeChecksums::kPageBytes), 1);  // 0 has a meaning
}

}  // namespace

absl::StatusOr<NvmeChecksums> NvmeChecksums::Create(int64_t file_bytes) {
  const auto pages = static_cast<size_t>((file_bytes + kPageBytes - 1) / kPageBytes);
  // calloc of a large table is address space alone until its pages are written.
  Table hashes(static_cast<uint64_t*>(std::calloc(pages, sizeof(uint64_t))));
  if (hashes == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("nvme.verify: the system refuses ", pages * sizeof(uint64_t),
                     " bytes for checksums; set nvme.verify: false or offload less to nvme"));
  }
  return NvmeChecksums(std::move(hashes));
}

void NvmeChecksums::Note(int64_t offset, std::span<const std::byte> data) {
  uint64_t* hash = &hashes_[static_cast<size_t>(offset / kPageBytes)];
  for (size_t i = 0; i < data.size(); i += kPageBytes) *hash++ = HashOf(data.data() + i);
}

int64_t NvmeChecksums::FirstWrong(int64_t offset, std::span<const std::byte> data) const {
  const uint64_t* hash = &hashes_[static_cast<size_t>(offset / kPageBytes)];
  for (size_t i = 0; i < data.size(); i += kPageBytes, ++hash) {
    if (*hash != 0 && *hash != HashOf(data.data() + i)) return offset + static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace terrace
