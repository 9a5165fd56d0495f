// What a job spec needs and the imported configuration did not hold.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/import/deepspeed.h"

namespace terrace {
namespace {

// Given, or a placeholder that a person replaces.
void Need(SpecDraft* draft, std::string_view key, const std::string& given,
          const std::string& placeholder, const char* option) {
  if (!given.empty()) {
    draft->SetText(key, given);
  } else if (!draft->Has(key)) {
    draft->Set(key, placeholder);
    draft->Remark(absl::StrCat(std::string(key), " is a placeholder (", placeholder,
                               "): set it, or import with ", option));
  }
}

std::string Number(int64_t value) { return value > 0 ? absl::StrCat(value) : std::string(); }

// Larger ones are refused when the spec is read; here the product of three must be a number.
constexpr int64_t kDegreeMax = 1 << 20;

int64_t Degree(const SpecDraft& draft, std::string_view key) {
  int64_t degree = 1;
  return absl::SimpleAtoi(draft.Get(key), &degree) ? std::clamp<int64_t>(degree, 1, kDegreeMax) : 1;
}

// As many as the degrees of parallelism ask for, eight a node, where nobody says how many there
// are.
void SetDevices(const ImportContext& context, SpecDraft* draft) {
  constexpr int64_t kUsualDevices = 8;
  const int64_t ranks =
      Degree(*draft, "layout.tp") * Degree(*draft, "layout.pp") * Degree(*draft, "layout.cp");
  int64_t nodes = context.nodes, devices = context.devices_per_node;
  const bool written = draft->Has("resources.nodes") || draft->Has("resources.devices_per_node");
  if (nodes == 0 && devices == 0 && !written && ranks > 1) {
    devices = std::min(ranks, kUsualDevices);
    nodes = (ranks + devices - 1) / devices;
    draft->Remark(absl::StrCat("resources are as few devices as tp, pp and cp need (", ranks,
                               "): import with --nodes and --devices-per-node for more"));
  }
  if (nodes > 0) draft->Set("resources.nodes", absl::StrCat(nodes));
  if (devices > 0) draft->Set("resources.devices_per_node", absl::StrCat(devices));
}

// DeepSpeed and Megatron-LM take the rules of a dynamic scale beside a fixed one, and ignore them.
void LeaveOutOfFixedScale(SpecDraft* draft) {
  double fixed = 0;
  if (!absl::SimpleAtod(draft->Get("train.loss_scale.fixed"), &fixed) || fixed <= 0) return;
  std::vector<std::string> left_out;
  for (const char* rule : {"initial", "window", "hysteresis", "min"}) {
    const std::string key = absl::StrCat("train.loss_scale.", rule);
    if (!draft->Has(key)) continue;
    draft->Drop(key);
    left_out.push_back(rule);
  }
  if (left_out.empty()) return;
  draft->Remark(absl::StrCat("train.loss_scale has no ", absl::StrJoin(left_out, ", "),
                             ": a fixed scale never changes"));
}

// Undecided is the spec's own default.
std::string PrecisionOf(const SpecDraft& draft) {
  return draft.Has("train.precision") ? draft.Get("train.precision") : "bf16";
}

}  // namespace

bool AllowsBf16Gradients(const SpecDraft& draft) {
  const std::string precision = PrecisionOf(draft);
  return precision == "bf16" || precision == "fp16" || precision == "fp8";
}

void Complete(const ImportContext& context, SpecDraft* draft) {
  const std::string precision = PrecisionOf(*draft);
  const bool rounds = AllowsBf16Gradients(*draft);
  for (const char* const key : {"formats.gradient", "formats.reduce"}) {
    if (draft->Get(key) != "bf16" || rounds) continue;
    draft->Set(key, "f32");
    draft->Remark(absl::StrCat(key, " is f32: gradients of ", precision, " training are f32"));
  }
  if (draft->Get("formats.gradient") == "bf16" && draft->Get("formats.reduce") == "f32") {
    draft->Set("formats.reduce", "bf16");
    draft->Remark("formats.reduce is bf16: gradients that are stored in bf16 are sent in bf16");
  }
  if (draft->Has("train.loss_scale") && precision != "fp16") {
    draft->Drop("train.loss_scale");
    draft->Remark("train.loss_scale is left out: only fp16 has one");
  }
  LeaveOutOfFixedScale(draft);
  draft->SetText("name", context.name.empty() ? "imported" : context.name);
  Need(draft, "model.config", context.model, "gpt2", "--model");
  Need(draft, "data.train", context.train, "corpus.txt", "--train");
  Need(draft, "data.sequence_length", Number(context.sequence_length), "1024", "--sequence-length");
  Need(draft, "train.steps", Number(context.steps), "1000", "--steps");
  SetDevices(context, draft);
}

}  // namespace terrace
