// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/optimizer_names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr std::string_view kAdamw = "adamw", kLion = "lion", kSgd = "sgd", kMuon = "muon";
constexpr std::string_view kAdafactor = "adafactor", kCame = "came";
constexpr std::string_view kAdamwInt8 = "adamw with formats.moments: int8";
constexpr std::string_view kLionInt8 = "lion with formats.moments: int8";
// Paged states move to the host when the device is full; here the plan says where they rest.
constexpr std::string_view kAdamwOnHost = "adamw with layout.offload.optimizer: host";
constexpr std::string_view kLionOnHost = "lion with layout.offload.optimizer: host";
constexpr std::string_view kAdamwInt8OnHost =
    "adamw with formats.moments: int8 and layout.offload.optimizer: host";
constexpr std::string_view kLionInt8OnHost =
    "lion with formats.moments: int8 and layout.offload.optimizer: host";
// Of a rule that is not there and saves memory.
constexpr std::string_view kLess =
    "adamw with formats.moments: int8 (2 bytes of moments a parameter), lion (4, or 1 with int8) "
    "or "
    "adafactor (next to none): that rule is not there";
// Gradients are used up one by one where nothing needs the norm of all.
constexpr std::string_view kLomo =
    "sgd with train.clip_grad_norm: 0, train.optimizer.stochastic_rounding: true and formats: "
    "{gradient: bf16, allow: {gradient: bf16}}";
// Adafactor without a moment, whose steps are those of lomo-optim.
constexpr std::string_view kAdalomo = "adafactor with train.clip_grad_norm: 0";
constexpr std::string_view kOther = "adamw: that rule is not there";

struct Foreign {
  std::string_view name;  // lower case, without what is not a letter or digit
  std::string_view instead;
};
constexpr Foreign kForeign[] = {
    {"adamwtorch", kAdamw},
    {"adamwtorchfused", kAdamw},
    {"adamwtorchxla", kAdamw},
    {"adamwtorchnpufused", kAdamw},
    {"adamwapexfused", kAdamw},
    {"adamwanyprecision", kAdamw},
    {"adamwhf", kAdamw},
    {"fusedadam", kAdamw},
    {"fusedadamw", kAdamw},
    {"cpuadam", kAdamw},
    {"deepspeedcpuadam", kAdamw},
    {"distributedadam", kAdamw},
    {"adamw8bit", kAdamwInt8},
    {"adam8bit", kAdamwInt8},
    {"adamwbnb8bit", kAdamwInt8},
    {"adamwtorch8bit", kAdamwInt8},
    {"adamwtorch4bit", kAdamwInt8},
    {"pagedadamw", kAdamwOnHost},
    {"pagedadamw32bit", kAdamwOnHost},
    {"pagedadamw8bit", kAdamwInt8OnHost},
    {"fusedlion", kLion},
    {"deepspeedcpulion", kLion},
    {"lion32bit", kLion},
    {"lion8bit", kLionInt8},
    {"pagedlion", kLionOnHost},
    {"pagedlion32bit", kLionOnHost},
    {"pagedlion8bit", kLionInt8OnHost},
    {"momentum", kSgd},
    {"nesterov", kSgd},
    {"sgdmomentum", kSgd},
    {"adafactor", kAdafactor},
    {"adalomo", kAdalomo},
    {"ademamix", kOther},
    {"ademamix8bit", kOther},
    {"apolloadamw", kLess},
    {"came", kCame},
    {"galoreadafactor", kLess},
    {"galoreadamw", kLess},
    {"galoreadamw8bit", kLess},
    {"lomo", kLomo},
    {"muonadamw", kMuon},
    {"muonwithauxadam", kMuon},
    {"distmuon", kMuon},
    {"distributedmuon", kMuon},
    {"moonlight", kMuon},
    {"adagrad", kOther},
    {"adabelief", kOther},
    {"grokadamw", kOther},
    {"lamb", kOther},
    {"nadam", kOther},
    {"onebitadam", kOther},
    {"radam", kOther},
    {"rmsprop", kOther},
    {"rmspropbnb", kOther},
    {"schedulefreeadamw", kOther},
    {"schedulefreesgd", kOther},
    {"schedulefreeradam", kOther},
    {"soap", kOther},
    {"sophia", kOther},
    {"sophiag", kOther},
    {"stableadamw", kOther},
    {"zerooneadam", kOther},
};

std::string Bare(std::string_view name) {
  std::string bare;
  for (const unsigned char c : name) {
    if (absl::ascii_isalnum(c)) bare += absl::ascii_tolower(c);
  }
  return bare;
}

}  // namespace

std::string OptimizerInstead(std::string_view name) {
  const std::string bare = Bare(name);
  const auto* const found = std::find_if(std::begin(kForeign), std::end(kForeign),
                                         [&](const Foreign& row) { return row.name == bare; });
  return found == std::end(kForeign) ? "" : std::string(found->instead);
}

}  // namespace terrace
