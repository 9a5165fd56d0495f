// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed_defaults.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "coordinator/import/deepspeed_values.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

struct Default {
  std::string_view pointer;
  std::string_view key;
  std::string_view value;
};

// FusedAdam and DeepSpeedCPUAdam have these.
constexpr Default kAdam[] = {
    {"/optimizer/params/lr", "train.optimizer.lr", "1e-3"},
    {"/optimizer/params/betas", "train.optimizer.betas", "[0.9, 0.999]"},
    {"/optimizer/params/eps", "train.optimizer.epsilon", "1e-8"},
    {"/optimizer/params/weight_decay", "train.optimizer.weight_decay", "0"}};
// FusedLion and DeepSpeedCPULion have these.
constexpr Default kLion[] = {
    {"/optimizer/params/lr", "train.optimizer.lr", "1e-3"},
    {"/optimizer/params/betas", "train.optimizer.betas", "[0.9, 0.99]"},
    {"/optimizer/params/weight_decay", "train.optimizer.weight_decay", "0"}};
// torch.optim.SGD has these.
constexpr Default kSgd[] = {
    {"/optimizer/params/lr", "train.optimizer.lr", "1e-3"},
    {"/optimizer/params/weight_decay", "train.optimizer.weight_decay", "0"}};
// torch.optim.Adafactor has these.
constexpr Default kAdafactor[] = {
    {"/optimizer/params/lr", "train.optimizer.lr", "1e-2"},
    {"/optimizer/params/weight_decay", "train.optimizer.weight_decay", "0"}};
constexpr Default kWarmup[] = {
    {"/scheduler/params/warmup_num_steps", "train.schedule.warmup_steps", "1000"}};

template <size_t size>
void Fill(const Json& config, const Default (&defaults)[size], SpecDraft* draft,
          std::vector<std::string>* filled) {
  for (const Default& one : defaults) {
    if (!At(config, one.pointer).is_null() || draft->Has(one.key)) continue;
    draft->Set(one.key, std::string(one.value));
    filled->push_back(absl::StrCat(Absl(one.key), ": ", Absl(one.value)));
  }
}

}  // namespace

void SetDeepSpeedDefaults(const Json& config, SpecDraft* draft) {
  std::vector<std::string> filled;
  const std::string optimizer = draft->Get("train.optimizer.name");
  if (optimizer == "adamw" || optimizer == "adam") Fill(config, kAdam, draft, &filled);
  if (optimizer == "lion") Fill(config, kLion, draft, &filled);
  if (optimizer == "sgd") Fill(config, kSgd, draft, &filled);
  if (optimizer == "adafactor") Fill(config, kAdafactor, draft, &filled);
  if (draft->Has("train.schedule.name")) {
    Fill(config, kWarmup, draft, &filled);
  } else if (!config.empty()) {
    draft->Remark(
        "train.schedule is left at its default, cosine: the configuration has no scheduler, so the "
        "training script chose it");
  }
  if (!config.empty() && At(config, "/gradient_clipping").is_null()) {
    draft->Set("train.clip_grad_norm", "0");
    filled.push_back("train.clip_grad_norm: 0");
  }
  if (filled.empty()) return;
  draft->Remark(absl::StrCat("as DeepSpeed's defaults are where its configuration says nothing: ",
                             absl::StrJoin(filled, ", ")));
}

}  // namespace terrace
