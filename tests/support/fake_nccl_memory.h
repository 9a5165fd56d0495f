// What the fake NCCL knows of memory: what each communicator has registered, and where operands lie
// in that.
//
// Thread rule: everything under the mutex of fake_nccl_state.h, but for pages.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace terrace::fake_nccl {

inline constexpr int64_t kUnregistered = -1;

// Of one communicator.
class Registrations {
 public:
  void* Add(void* memory, size_t bytes);
  bool Remove(void* handle);
  void Clear();
  bool empty() const { return by_handle_.empty(); }
  // Bytes from the start of what was registered; kUnregistered.
  int64_t PlaceOf(const void* data) const;

 private:
  std::map<void*, std::pair<std::byte*, size_t>> by_handle_;
};

// Of one operation.
struct Places {
  int64_t in = kUnregistered, out = kUnregistered;
};
// What NCCL asks of two members of a collective. Parts that are a member's own lie where its rank
// says: only the whole must be at one place.
bool SamePlaces(const std::string& kind, const Places& a, const Places& b);

int CountRegistrations();  // of all communicators
bool IsRegistered(const void* memory);

std::byte* NewPages(int64_t bytes);
void FreePages(std::byte* pages);

}  // namespace terrace::fake_nccl
