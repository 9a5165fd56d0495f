// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron/defaults.h"

#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"

namespace terrace {
namespace {

struct Default {
  std::string_view flag;
  std::string_view key;
  std::string_view value;
};
constexpr Default kDefaults[] = {
    {"lr-decay-style", "train.schedule.name", "linear"},
    {"weight-decay", "train.optimizer.weight_decay", "0.01"},
};
// These belong to one optimizer or one schedule.
constexpr Default kAdam = {"adam-beta1", "train.optimizer.betas", "[0.9, 0.999]"};
constexpr Default kSgd = {"sgd-momentum", "train.optimizer.momentum", "0.9"};
constexpr Default kWsd = {"lr-wsd-decay-style", "train.schedule.decay", "exponential"};

}  // namespace

void SetMegatronDefaults(const MegatronLine& line, SpecDraft* draft) {
  std::vector<std::string> filled;
  std::vector<Default> defaults(std::begin(kDefaults), std::end(kDefaults));
  const bool is_sgd = line.Given("optimizer") && line.Value("optimizer") == "sgd";
  defaults.push_back(is_sgd ? kSgd : kAdam);
  if (line.Given("lr-decay-style") && line.Value("lr-decay-style") == "WSD")
    defaults.push_back(kWsd);
  for (const Default& one : defaults) {
    if (line.Given(std::string(one.flag)) || draft->Has(one.key)) continue;
    draft->Set(one.key, std::string(one.value));
    filled.push_back(absl::StrCat(Absl(one.key), ": ", Absl(one.value)));
  }
  if (!filled.empty()) {
    draft->Remark(absl::StrCat("as Megatron-LM's defaults are where no flag says it: ",
                               absl::StrJoin(filled, ", ")));
  }
  // Megatron-LM drops of the embeddings what it drops of blocks.
  if (line.Given("hidden-dropout"))
    draft->Set("model.dropout.embedding", std::string(line.Value("hidden-dropout")));
  for (const auto& [flag, key] :
       {std::pair("hidden-dropout", "model.dropout.residual and model.dropout.embedding"),
        std::pair("attention-dropout", "model.dropout.attention")}) {
    if (line.Given(flag)) continue;
    draft->Remark(absl::StrCat("--", flag,
                               " is 0.1 in Megatron-LM where not given; here what the model's "
                               "config says is dropped, or what ",
                               key, " says"));
  }
}

}  // namespace terrace
