// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/memory_store.h"

#include "tests/conformance/store_conformance.h"

namespace terrace {
namespace {

INSTANTIATE_TEST_SUITE_P(MemoryStore, StoreConformance,
                         testing::Values(StoreFactory{
                             "memory", [] { return std::make_unique<MemoryStore>(); }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
