// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl_memory.h"

#include <unistd.h>

#include <cstdlib>
#include <set>

namespace terrace::fake_nccl {
namespace {

std::multiset<const void*> all;  // starts of what is registered, over all communicators

}  // namespace

void* Registrations::Add(void* memory, size_t bytes) {
  void* const handle = new int(0);
  by_handle_[handle] = {static_cast<std::byte*>(memory), bytes};
  all.insert(memory);
  return handle;
}

bool Registrations::Remove(void* handle) {
  const auto found = by_handle_.find(handle);
  if (found == by_handle_.end()) return false;
  all.erase(all.find(found->second.first));
  by_handle_.erase(found);
  delete static_cast<int*>(handle);
  return true;
}

void Registrations::Clear() {
  while (!by_handle_.empty()) Remove(by_handle_.begin()->first);
}

int64_t Registrations::PlaceOf(const void* data) const {
  for (const auto& [handle, block] : by_handle_) {
    const int64_t place = static_cast<const std::byte*>(data) - block.first;
    if (place >= 0 && place < static_cast<int64_t>(block.second)) return place;
  }
  return kUnregistered;
}

bool SamePlaces(const std::string& kind, const Places& a, const Places& b) {
  const bool registered_alike = (a.in == kUnregistered) == (b.in == kUnregistered) &&
                                (a.out == kUnregistered) == (b.out == kUnregistered);
  return registered_alike && (kind == "reduce-scatter" ? a.in == b.in : a.out == b.out);
}

int CountRegistrations() { return static_cast<int>(all.size()); }

bool IsRegistered(const void* memory) { return all.contains(memory); }

std::byte* NewPages(int64_t bytes) {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  return static_cast<std::byte*>(std::aligned_alloc(page, (bytes + page - 1) / page * page));
}

void FreePages(std::byte* pages) { std::free(pages); }

}  // namespace terrace::fake_nccl
