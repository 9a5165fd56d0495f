// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "coordinator/hardware/cluster_file.h"
#include "coordinator/import/deepspeed.h"
#include "coordinator/import/megatron/megatron.h"
#include "coordinator/import/report.h"
#include "coordinator/model/adapter_config.h"
#include "coordinator/model/config.h"
#include "coordinator/model/model.h"
#include "coordinator/spec/job_spec.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/target.h"

namespace terrace {

void FuzzSpec(std::string_view input) {
  const auto spec = ParseJobSpec(input, "/jobs");
  if (!spec.ok()) return JudgeRefusal(spec.status());
  FuzzRequire(spec->train().steps() > 0, "a job has steps", spec->name());
  FuzzRequire(spec->train().global_batch() > 0, "a job has a batch", spec->name());
  v1::JobSpec again;
  FuzzRequire(again.ParseFromString(spec->SerializeAsString()), "a spec travels", spec->name());
}

void FuzzModelConfig(std::string_view input) {
  const auto config = ParseModelConfig(input, 128);
  if (!config.ok()) return JudgeRefusal(config.status());
  for (const std::string& remark : config->remarks)
    FuzzRequire(CleanText(remark) == remark, "a remark can be printed", remark);
  if (config->layers > 1000) return;  // a table of that many tensors is slow, not wrong
  const Model model = BuildModel(*config);
  FuzzRequire(model.Parameters() > 0, "a model has parameters", config->family);
  for (const Tensor& tensor : model.tensors)
    FuzzRequire(tensor.elements() > 0, "a tensor has elements", tensor.name);
}

void FuzzAdapterConfig(std::string_view input) {
  const auto config = ParseAdapterConfig(input);
  if (!config.ok()) return JudgeRefusal(config.status());
  FuzzRequire(config->rank > 0 && config->alpha > 0, "an adapter has a rank and a scale", input);
  FuzzRequire(!config->targets.empty(), "an adapter has targets", input);
  for (const std::string& target : config->targets)
    FuzzRequire(!target.empty() && target.size() <= 256, "a target is a name", target);
}

namespace {

// What is imported can be shown as a table and as JSON, and its YAML can be read: whether it is a
// whole job is for the spec to say.
void JudgeDraft(const absl::StatusOr<SpecDraft>& draft) {
  if (!draft.ok()) return JudgeRefusal(draft.status());
  for (const ImportedSetting& setting : draft->settings()) {
    for (const std::string& text : {setting.setting, setting.value, setting.target, setting.note})
      FuzzRequire(CleanLine(text) == text, "a setting can be printed on one line", text);
  }
  const auto spec = ParseJobSpec(draft->Yaml(), "/jobs");
  if (!spec.ok()) JudgeRefusal(spec.status());
}

constexpr char kModel[] = "gpt2", kData[] = "/books.txt";

}  // namespace

void FuzzDeepSpeed(std::string_view input) {
  JudgeDraft(ImportDeepSpeed(input, {.name = "job", .model = kModel, .train = kData}));
}

void FuzzMegatron(std::string_view input) {
  JudgeDraft(ImportMegatron(input, {.name = "job", .model = "", .train = kData}));
}

void FuzzCluster(std::string_view input) {
  const auto cluster = ParseClusterFile(input);
  if (!cluster.ok()) JudgeRefusal(cluster.status());
}

}  // namespace terrace
