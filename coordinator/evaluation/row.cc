// SPDX-License-Identifier: Apache-2.0
#include "coordinator/evaluation/row.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace terrace {
namespace {

bool IsState(v1::BufferClass buffer_class) {
  return buffer_class == v1::PARAMETER || buffer_class == v1::GRADIENT ||
         buffer_class == v1::OPTIMIZER;
}

// Of one stage and tier: its most at any moment, where a class comes and goes.
int64_t StateBytes(const v1::StageMemory& memory) {
  std::map<v1::BufferClass, int64_t> most;
  for (const auto* lines : {&memory.lines(), &memory.largest()}) {
    std::map<v1::BufferClass, int64_t> bytes;
    for (const v1::MemoryLine& line : *lines) {
      if (IsState(line.class_())) bytes[line.class_()] += line.bytes();
    }
    for (const auto& [buffer_class, held] : bytes)
      most[buffer_class] = std::max(most[buffer_class], held);
  }
  int64_t all = 0;
  for (const auto& [buffer_class, held] : most) all += held;
  return all;
}

}  // namespace

void FillRow(const Prepared& prepared, v1::EvaluatedRow* row) {
  const v1::Plan& plan = prepared.plan;
  row->set_fits(prepared.refusal.ok());
  if (!prepared.refusal.ok()) row->set_excess(std::string(prepared.refusal.message()));
  *row->mutable_layout() = plan.layout();
  *row->mutable_time() = plan.time();
  *row->mutable_memory() = plan.memory();
  std::map<uint32_t, int64_t> states;  // by stage, on all tiers
  for (const v1::StageMemory& memory : plan.memory()) {
    const int64_t bytes = memory.arena_bytes() + memory.external_bytes();
    states[memory.stage()] += StateBytes(memory);
    if (memory.tier() == v1::HOST) row->set_host_bytes(std::max(row->host_bytes(), bytes));
    if (memory.tier() == v1::NVME) row->set_nvme_bytes(std::max(row->nvme_bytes(), bytes));
    if (memory.tier() != v1::DEVICE || bytes <= row->device_bytes()) continue;
    row->set_device_bytes(bytes);
    if (memory.lower_bound_bytes() > 0) {
      row->set_packing_ratio(static_cast<double>(memory.arena_bytes()) /
                             static_cast<double>(memory.lower_bound_bytes()));
    }
  }
  const auto parameters = static_cast<double>(std::max<int64_t>(1, plan.model().parameters()));
  int64_t most = 0;
  for (const auto& [stage, bytes] : states) most = std::max(most, bytes);
  row->set_state_bytes_per_parameter(static_cast<double>(most) / parameters);
  row->set_device_bytes_per_parameter(static_cast<double>(row->device_bytes()) / parameters);
}

void CompareRow(const v1::EvaluatedRow& none, v1::EvaluatedRow* row) {
  if (!row->impossible().empty() || !none.impossible().empty()) return;
  if (none.device_bytes() > 0) {
    row->set_memory_ratio(static_cast<double>(row->device_bytes()) /
                          static_cast<double>(none.device_bytes()));
  }
  // A step may have more tokens in one of them.
  if (row->time().tokens_per_second() > 0) {
    row->set_time_ratio(none.time().tokens_per_second() / row->time().tokens_per_second());
  }
}

}  // namespace terrace
