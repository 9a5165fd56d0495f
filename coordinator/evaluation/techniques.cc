// SPDX-License-Identifier: Apache-2.0
#include "coordinator/evaluation/techniques.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/strings.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace terrace {
namespace {

constexpr char kNobody[] =
    "it changes nothing here: with one data-parallel rank there is nobody to share with";
constexpr char kOneSequence[] =
    "it changes nothing here: a rank computes one sequence at a time already";
constexpr char kAlready[] = "it changes nothing here: the job has it already";
constexpr char kSame[] = "it changes nothing here";

constexpr Setting kNone[] = {{"layout.tp", "1"},
                             {"layout.pp", "1"},
                             {"layout.cp", "1"},
                             {"layout.zero", "0"},
                             {"layout.recompute", "none"},
                             {"layout.offload.parameter", "device"},
                             {"layout.offload.gradient", "device"},
                             {"layout.offload.optimizer", "device"},
                             {"layout.offload.activation", "device"},
                             {"layout.tile_bytes", "0"}};

// Of a spec's layout, what is not a technique.
constexpr std::string_view kKept[] = {"bucket_bytes", "communication_dtype", "allocator",
                                      "packing",      "chunk_bytes",         "context_type"};

}  // namespace

std::span<const Setting> NoTechnique() { return kNone; }

const std::vector<Technique>& Techniques() {
  static const auto* techniques = new std::vector<Technique>{
      {"micro-batch",
       "1 sequence",
       "A rank computes one sequence at a time, more often in a step.",
       kOneSequence,
       {{"layout.micro_batch", "1"}}},
      {"recompute",
       "selective",
       "The cheap activations of each layer are recomputed.",
       kSame,
       {{"layout.recompute", "selective"}}},
      {"recompute",
       "block",
       "Of each layer only its input is kept; the rest is recomputed.",
       kSame,
       {{"layout.recompute", "block"}}},
      {"recompute",
       "sqrt",
       "Only every sqrt(layers)th layer's input is kept.",
       kSame,
       {{"layout.recompute", "sqrt"}}},
      {"recompute",
       "full",
       "Only the input of all layers is kept.",
       kSame,
       {{"layout.recompute", "full"}}},
      {"ZeRO",
       "stage 1",
       "Data-parallel ranks share the optimizer's states.",
       kNobody,
       {{"layout.zero", "1"}}},
      {"ZeRO", "stage 2", "They share the gradients too.", kNobody, {{"layout.zero", "2"}}},
      {"ZeRO",
       "stage 3",
       "They share the weights too, and gather a layer's when it is used.",
       kNobody,
       {{"layout.zero", "3"}}},
      {"offload to host",
       "optimizer",
       "The host keeps optimizer states and gradients, and updates.",
       kSame,
       {{"layout.offload.optimizer", "host"}, {"layout.offload.gradient", "host"}}},
      {"offload to host",
       "weights too",
       "It keeps the weights too, which are copied for each use.",
       kSame,
       {{"layout.offload.optimizer", "host"},
        {"layout.offload.gradient", "host"},
        {"layout.offload.parameter", "host"}}},
      {"offload to host",
       "tiled weights",
       "The same, large matrices in tiles of 16 MiB.",
       kSame,
       {{"layout.offload.optimizer", "host"},
        {"layout.offload.gradient", "host"},
        {"layout.offload.parameter", "host"},
        {"layout.tile_bytes", "16MiB"}}},
      {"offload to host",
       "activations",
       "Activations wait on the host for the backward pass.",
       kSame,
       {{"layout.offload.activation", "host"}}},
      {"offload to host",
       "all",
       "The host keeps whatever nothing computes with.",
       kSame,
       {{"layout.offload.optimizer", "host"},
        {"layout.offload.gradient", "host"},
        {"layout.offload.parameter", "host"},
        {"layout.offload.activation", "host"}}},
      {"offload to NVMe",
       "optimizer",
       "Optimizer states rest on NVMe, gradients on the host.",
       kSame,
       {{"layout.offload.optimizer", "nvme"}, {"layout.offload.gradient", "host"}}},
      {"offload to NVMe",
       "weights too",
       "Weights rest on NVMe too and are read for each use.",
       kSame,
       {{"layout.offload.optimizer", "nvme"},
        {"layout.offload.gradient", "nvme"},
        {"layout.offload.parameter", "nvme"}}},
      {"offload to NVMe",
       "activations",
       "Activations wait on NVMe for the backward pass.",
       kSame,
       {{"layout.offload.activation", "nvme"}}},
      {"offload to NVMe",
       "all",
       "NVMe keeps whatever nothing computes with.",
       kSame,
       {{"layout.offload.optimizer", "nvme"},
        {"layout.offload.gradient", "nvme"},
        {"layout.offload.parameter", "nvme"},
        {"layout.offload.activation", "nvme"}}},
      {"tensor parallel",
       "2 ranks",
       "They share the products of each layer.",
       kSame,
       {{"layout.tp", "2"}}},
      {"tensor parallel",
       "4 ranks",
       "They share the products of each layer.",
       kSame,
       {{"layout.tp", "4"}}},
      {"tensor parallel",
       "8 ranks",
       "They share the products of each layer.",
       kSame,
       {{"layout.tp", "8"}}},
      {"pipeline parallel", "2 stages", "They share the layers.", kSame, {{"layout.pp", "2"}}},
      {"pipeline parallel", "4 stages", "They share the layers.", kSame, {{"layout.pp", "4"}}},
      {"pipeline parallel", "8 stages", "They share the layers.", kSame, {{"layout.pp", "8"}}},
      {"context parallel",
       "2 ranks",
       "They share the tokens of each sequence.",
       kSame,
       {{"layout.cp", "2"}}},
      {"context parallel",
       "4 ranks",
       "They share the tokens of each sequence.",
       kSame,
       {{"layout.cp", "4"}}},
      {"number formats",
       "bf16",
       "Activations and products in bf16; weights and states in fp32.",
       kAlready,
       {{"train.precision", "bf16"}},
       true},
      {"number formats",
       "bf16 weights",
       "Matrices in bf16 without fp32 masters, rounded at random.",
       kAlready,
       {{"train.precision", "bf16"}, {"train.optimizer.stochastic_rounding", "true"}},
       true},
      {"number formats",
       "bf16 gradients",
       "Gradients of matrices in bf16, rounded at each addition.",
       kAlready,
       {{"train.precision", "bf16"}, {"formats.gradient", "bf16"}, {"formats.reduce", "bf16"}},
       true},
      {"number formats",
       "fp8 activations",
       "Activations wait for the backward pass in fp8; the loss is exact.",
       kAlready,
       {{"train.precision", "bf16"}, {"formats.activation", "fp8"}},
       true},
  };
  return *techniques;
}

namespace {

using google::protobuf::FieldDescriptor;

// "16MiB" or a plain number.
std::optional<int64_t> Number(std::string_view text) {
  absl::string_view digits = Absl(text);
  const int shift = absl::ConsumeSuffix(&digits, "MiB") ? 20 : 0;
  int64_t number = 0;
  if (!absl::SimpleAtoi(digits, &number)) return std::nullopt;
  return number << shift;
}

bool SetNumber(google::protobuf::Message* message, const FieldDescriptor* field,
               std::string_view value) {
  const std::optional<int64_t> number = Number(value);
  if (!number) return false;
  const google::protobuf::Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      reflection->SetUInt32(message, field, static_cast<uint32_t>(*number));
      return true;
    case FieldDescriptor::CPPTYPE_INT32:
      reflection->SetInt32(message, field, static_cast<int32_t>(*number));
      return true;
    case FieldDescriptor::CPPTYPE_INT64:
      reflection->SetInt64(message, field, *number);
      return true;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      reflection->SetDouble(message, field, static_cast<double>(*number));
      return true;
    default:
      return false;
  }
}

bool Set(google::protobuf::Message* message, const FieldDescriptor* field, std::string_view value) {
  const google::protobuf::Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      reflection->SetString(message, field, std::string(value));
      return true;
    case FieldDescriptor::CPPTYPE_BOOL:
      reflection->SetBool(message, field, value == "true");
      return true;
    case FieldDescriptor::CPPTYPE_MESSAGE: {  // shares of the tiers
      google::protobuf::Message* shares = reflection->MutableMessage(message, field);
      shares->Clear();
      const FieldDescriptor* tier = shares->GetDescriptor()->FindFieldByName(std::string(value));
      return tier != nullptr && SetNumber(shares, tier, "1");
    }
    default:
      return SetNumber(message, field, value);
  }
}

// Replaces the value where the key is there.
void Note(std::string_view key, std::string_view value, std::vector<v1::SpecSetting>* settings) {
  auto found = std::find_if(settings->begin(), settings->end(),
                            [&](const v1::SpecSetting& one) { return one.key() == key; });
  if (found == settings->end()) {
    found = settings->emplace(settings->end());
    found->set_key(std::string(key));
  }
  found->set_value(std::string(value));
}

}  // namespace

bool Apply(const Setting& setting, v1::JobSpec* spec) {
  const std::vector<std::string> path = absl::StrSplit(Absl(setting.key), '.');
  google::protobuf::Message* message = spec;
  for (size_t i = 0; i < path.size(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(path[i]);
    if (field == nullptr) return false;
    if (i + 1 == path.size()) return Set(message, field, setting.value);
    if (field->message_type() == nullptr) return false;
    message = message->GetReflection()->MutableMessage(message, field);
  }
  return false;
}

v1::JobSpec WithTechnique(v1::JobSpec spec, const Technique* technique,
                          std::vector<v1::SpecSetting>* settings) {
  v1::LayoutSpec layout;
  layout.set_sequence_parallel(-1);
  layout.set_persistent_parameters(-1);
  layout.set_allocator("planned");
  const google::protobuf::Reflection* reflection = layout.GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection->ListFields(spec.layout(), &set);
  for (const FieldDescriptor* field : set) {
    if (std::find(std::begin(kKept), std::end(kKept), field->name()) == std::end(kKept)) continue;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      reflection->SetString(&layout, field, reflection->GetString(spec.layout(), field));
    } else {
      reflection->SetInt64(&layout, field, reflection->GetInt64(spec.layout(), field));
    }
  }
  *spec.mutable_layout() = std::move(layout);
  const auto take = [&](const Setting& setting) {
    Apply(setting, &spec);
    Note(setting.key, setting.value, settings);
  };
  for (const Setting& setting : kNone) take(setting);
  if (technique != nullptr) {
    for (const Setting& setting : technique->settings) take(setting);
  }
  return spec;
}

std::vector<std::string> LeftOut(const v1::JobSpec& spec) {
  const v1::LayoutSpec& layout = spec.layout();
  std::vector<const FieldDescriptor*> set;
  layout.GetReflection()->ListFields(layout, &set);
  std::vector<std::string> keys;
  for (const FieldDescriptor* field : set) {
    const bool kept =
        std::find(std::begin(kKept), std::end(kKept), field->name()) != std::end(kKept);
    const bool chosen =  // a number below what can be written
        !field->is_repeated() && ((field->cpp_type() == FieldDescriptor::CPPTYPE_INT32 &&
                                   layout.GetReflection()->GetInt32(layout, field) < 0) ||
                                  (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64 &&
                                   layout.GetReflection()->GetInt64(layout, field) < 0));
    if (!kept && !chosen && field->name() != "micro_batch") {
      keys.push_back(absl::StrCat("layout.", field->name()));
    }
  }
  return keys;
}

}  // namespace terrace
