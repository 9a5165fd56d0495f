// SPDX-License-Identifier: Apache-2.0
#include "tests/support/published_runs.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/layout/rules.h"

namespace terrace {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kFarApart = 1.15;

using Row = std::map<std::string, std::string>;

// One line of a CSV file with quoted cells.
std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

double Number(const Row& row, const std::string& column, double otherwise = 0) {
  double number = 0;
  return absl::SimpleAtod(row.at(column), &number) ? number : otherwise;
}
int64_t Whole(const Row& row, const std::string& column, int64_t otherwise) {
  return static_cast<int64_t>(Number(row, column, static_cast<double>(otherwise)));
}

struct Adapter {
  // Of the attention rates in the catalogue, which are FlashAttention-2's.
  double attention_share = 1;
  double memory_share = 1;
  const char* network = "";  // of a device; empty: the catalogue's
  bool unfused_attention = false;
  bool gradients_in_bf16 = false;
};

// What the reports' software does that ours does not.
Adapter AdapterOf(const std::string& source, const Row& row, Generation generation) {
  Adapter adapter;
  // llm-foundry of 2023 attends with FlashAttention 1 and Triton's kernel: 115 to 120 TFLOP/s on
  // A100 (arXiv 2307.08691, figures 4 to 6, where version 2 has about 190). PyTorch without a
  // compiler reads and writes what a fused kernel keeps in registers: twice the traffic.
  if (source == "LLMF") {
    adapter.attention_share = 0.6;
    adapter.memory_share = 0.5;
  }
  // "pure" sums in bf16, "amp" in fp32; FMS's policy is bf16 throughout; NeMo and the C++ engines
  // sum in fp32 as we do, or once a step.
  adapter.gradients_in_bf16 = absl::StrContains(row.at("precision"), "pure") || source == "FMS";
  // 400 Gb/s for the eight devices of a node (the report's note).
  if (source == "FMS" && generation == Generation::kAmpere) adapter.network = "eth-50";
  // Megatron-LM of 2020 to 2022 writes the scores of attention to memory.
  adapter.unfused_attention = source == "KOR22" || source == "NAR21" || source == "MLV1";
  return adapter;
}

// bf16 weights and gradients with fp32 master weights and moments, shared as ZeRO shares them;
// llmq keeps bf16 moments.
double TheirStateBytes(const std::string& source, const v1::Layout& layout) {
  const double ranks = layout.data_parallel();
  const double optimizer = source == "LLMQ" ? 8 : 12;
  if (source == "TT25") return 16 / ranks;  // fp32 weights and gradients, sharded
  if (layout.zero_stage() == 3) return (4 + optimizer) / ranks;
  return 4 + optimizer / (layout.zero_stage() == 0 ? 1 : ranks);
}

const char* DeviceOf(const std::string& gpu) {
  static const std::map<std::string, const char*> kDevices = {
      {"H100-SXM5-80GB", "h100"},      {"H100-96GB-HBM2e (500W cap)", "h100-96gb"},
      {"H200-SXM-141GB", "h200"},      {"A100-SXM4-80GB", "a100"},
      {"A100-SXM4-40GB", "a100-40gb"}, {"A100-PCIe-40GB", "a100-pcie"},
      {"A800-PCIe-80GB", "a800-pcie"}, {"RTX-4090-24GB", "rtx4090"},
      {"RTX-3090-24GB", "rtx3090"},    {"RTX-PRO-6000-96GB", "rtxpro6000"},
      {"V100-SXM3-32GB", "v100"},
  };
  const auto found = kDevices.find(gpu);
  return found == kDevices.end() ? "" : found->second;
}

std::string NotExpressible(const Row& row, const std::string& source) {
  if (row.at("measured_peak_mem_gib") == "OOM") return "did not fit, nothing was measured";
  if (absl::StrContains(row.at("id"), "async")) return "asynchronous tensor parallelism";
  if (source == "PAX") return "recompute policy not recorded";
  if (row.at("offload") != "none" && !row.at("offload").empty()) {
    return "offload of single moments and of residuals";
  }
  if (row.at("global_batch").empty() && Number(row, "pp") > 1) return "global batch not recorded";
  if (*DeviceOf(row.at("gpu")) == '\0') return "device not in the catalogue";
  if (row.at("measured_tokens_per_s_per_gpu").empty()) return "no speed was measured";
  return "";
}

ModelConfig ConfigOf(const Row& row) {
  ModelConfig config;
  const std::string& name = row.at("model_name");
  const bool llama = absl::StrContains(name, "Llama"), qwen = absl::StrContains(name, "Qwen");
  config.family = llama ? "llama" : qwen ? "qwen2" : "gpt2";
  config.vocabulary = Whole(row, "vocab", 50257);
  config.hidden = Whole(row, "hidden", 0);
  config.layers = Whole(row, "layers", 0);
  config.heads = Whole(row, "heads", 1);
  config.kv_heads = Whole(row, "kv_heads", config.heads);
  config.head_dim = config.hidden / config.heads;
  config.intermediate = Whole(row, "ffn_hidden", 4 * config.hidden);
  config.max_positions = Whole(row, "seq_len", 0);
  config.mlp = llama || qwen ? MlpKind::kGated : MlpKind::kPlain;
  config.learned_positions = !llama && !qwen;
  // Small Qwen and all GPTs have one table for both ends.
  config.tied_embeddings = !llama && config.hidden <= (qwen ? 2048 : 1 << 30);
  config.conv1d_weights = config.learned_positions;
  if (config.conv1d_weights) config.qkv = QkvKind::kFused;
  if (config.mlp == MlpKind::kPlain) config.activation = ActivationKind::kGeluTanh;
  if (config.learned_positions) config.norm = NormKind::kLayerNorm;
  config.attention_out_bias = config.mlp_bias = config.learned_positions;
  config.qkv_bias = config.learned_positions || qwen;
  config.window.assign(config.layers, 0);
  return config;
}

void SetRecompute(const Row& row, v1::Layout* layout, int64_t layers) {
  const std::string& kind = row.at("recompute");
  layout->set_recompute("none");
  if (absl::StartsWith(kind, "full") || kind == "block") layout->set_recompute("block");
  if (kind == "selective op") layout->set_recompute("selective");
  if (kind != "selective") return;
  // FMS: every second layer.
  for (int64_t i = 0; i < layers; ++i) layout->add_recompute_layers(i % 2 == 0 ? "block" : "none");
}

v1::Layout LayoutOf(const Row& row, int64_t layers) {
  v1::Layout layout;
  const int64_t ranks = Whole(row, "gpus", 1);
  const int64_t tp = Whole(row, "tp", 1), pp = Whole(row, "pp", 1), cp = Whole(row, "cp", 1);
  const int64_t dp = ranks / (tp * pp * cp);
  layout.set_ranks(ranks);
  layout.set_tensor_parallel(tp);
  layout.set_pipeline_parallel(pp);
  layout.set_context_parallel(cp);
  layout.set_data_parallel(dp);
  layout.set_interleave(pp > 1 ? Whole(row, "vpp", 1) : 1);
  layout.set_schedule(layout.interleave() > 1 ? "interleaved" : "1f1b");
  layout.set_context_type("ring");
  layout.set_micro_batch(Whole(row, "micro_batch", 1));
  const int64_t batch = Whole(row, "global_batch", dp * layout.micro_batch());
  layout.set_micro_batches(std::max<int64_t>(1, batch / (dp * layout.micro_batch())));
  layout.set_sequence_parallel(row.at("sequence_parallel") == "y");
  const bool hybrid = absl::StrContains(row.at("zero_stage"), "HSDP");
  layout.set_zero_stage(hybrid ? 3 : Whole(row, "zero_stage", 0));
  if (hybrid) layout.set_shard_size(Whole(row, "gpus_per_node", 8));
  const std::string& precision = row.at("precision");
  layout.set_precision(absl::StrContains(precision, "fp8")    ? "fp8"
                       : absl::StrContains(precision, "fp16") ? "fp16"
                                                              : "bf16");
  SetRecompute(row, &layout, layers);
  return layout;
}

// Attention at the rates of what was there before it was fused.
void WriteScores(const Row& row, const CatalogueDevice& device, v1::HardwareProfile* profile) {
  const double peak =
      std::max(device.bf16_flops_per_second, device.fp16_flops_per_second) * device.power_share;
  const double matmul = peak * EfficiencyOf(device.generation).matmul;
  for (v1::KernelRate& kernel : *profile->mutable_kernels()) {
    if (!absl::StartsWith(kernel.kernel(), "attention")) continue;
    const UnfusedAttention rates = UnfusedAttentionRates(
        matmul, profile->memory_bytes_per_second(), static_cast<double>(kernel.rows()),
        static_cast<double>(kernel.columns()), row.at("recompute") == "attention");
    kernel.set_flops_per_second(kernel.kernel() == "attention" ? rates.forward : rates.backward);
  }
}

void SetHardware(const Row& row, const std::string& source, bool fused_attention,
                 PublishedRun* run) {
  const CatalogueDevice device = *FindDevice(DeviceOf(run->gpu));
  run->generation = device.generation;
  const auto per_node =
      static_cast<uint32_t>(std::min(Whole(row, "gpus_per_node", 8), Whole(row, "gpus", 1)));
  run->profile = ProfileOf(device, per_node);
  run->overhead_bytes = OverheadOf(device.generation).total();
  const Adapter adapter = AdapterOf(source, row, device.generation);
  if (adapter.gradients_in_bf16) run->layout.set_reduce_format("bf16");
  v1::HardwareProfile& profile = run->profile;
  profile.set_memory_bytes_per_second(profile.memory_bytes_per_second() * adapter.memory_share);
  for (v1::KernelRate& kernel : *profile.mutable_kernels()) {
    if (!absl::StartsWith(kernel.kernel(), "attention")) continue;
    kernel.set_flops_per_second(kernel.flops_per_second() * adapter.attention_share);
  }
  if (adapter.unfused_attention && !fused_attention) WriteScores(row, device, &profile);
  if (*adapter.network != '\0') {
    *profile.mutable_links(1) =
        NetworkRate(*FindLink(adapter.network, CatalogueLink::Kind::kNetwork));
  }
}

PublishedRun RunOf(const Row& row, bool fused_attention) {
  PublishedRun run;
  run.id = row.at("id");
  run.source = row.at("source");
  run.model_name = row.at("model_name");
  run.gpu = row.at("gpu");
  run.tokens_per_second_per_device = Number(row, "measured_tokens_per_s_per_gpu");
  run.memory_gib = Number(row, "measured_peak_mem_gib");
  const std::string source = SourceOf(run);
  run.not_expressible = NotExpressible(row, source);
  if (*DeviceOf(run.gpu) == '\0') return run;
  const ModelConfig config = ConfigOf(row);
  run.model = BuildModel(config);
  run.spec.mutable_data()->set_sequence_length(Whole(row, "seq_len", 0));
  run.layout = LayoutOf(row, config.layers);
  run.beyond_the_spec = run.layout.precision() == "fp8";
  run.their_state_bytes = TheirStateBytes(source, run.layout);
  SetHardware(row, source, fused_attention, &run);
  return run;
}

bool Comparable(const PublishedRun& run, const std::string& source) {
  return run.not_expressible.empty() && run.tokens_per_second_per_device > 0 &&
         (source.empty() || SourceOf(run) == source);
}

double Ratio(const PublishedRun& run) {
  return Predict(run).tokens_per_second_per_device / run.tokens_per_second_per_device;
}

}  // namespace

std::string SourceOf(const PublishedRun& run) {
  std::string name = run.id.substr(0, run.id.find('-'));
  return absl::StartsWith(name, "NEMO") ? "NEMO" : name;
}

absl::StatusOr<std::vector<PublishedRun>> ReadPublishedRuns(const std::string& path,
                                                            bool fused_attention) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  const std::vector<std::string> columns = Cells(line);
  std::vector<PublishedRun> runs;
  while (std::getline(in, line)) {
    const std::vector<std::string> cells = Cells(line);
    if (cells.size() != columns.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": a row has ", cells.size(), " cells of ", columns.size()));
    }
    Row row;
    for (size_t i = 0; i < cells.size(); ++i) row[columns[i]] = cells[i];
    runs.push_back(RunOf(row, fused_attention));
  }
  return runs;
}

Prediction Predict(const PublishedRun& run) {
  const EstimateModel model(run.spec, run.model);
  // Others gather weights as they are multiplied.
  const EngineTraits traits = {
      .gathered_element_bytes = run.layout.precision() == "fp32" ? 4.0 : 2.0,
      .renews_beside_next_step = true};
  const double seconds = TimeEstimator(model, run.profile, traits).StepSeconds(run.layout);
  const v1::Layout& layout = run.layout;
  const double tokens = static_cast<double>(int64_t{layout.micro_batch()} * layout.micro_batches() *
                                            layout.data_parallel()) *
                        static_cast<double>(model.sequence);
  Prediction prediction;
  prediction.tokens_per_second_per_device = tokens / seconds / layout.ranks();
  prediction.tflops_per_device =
      prediction.tokens_per_second_per_device * model.flops_per_token / 1e12;
  const MemoryEstimate memory = MemoryEstimator(model).Memory(layout);
  const auto overhead = static_cast<double>(run.overhead_bytes);
  prediction.memory_gib = (static_cast<double>(memory.total()) + overhead) / kGiB;
  const double states = static_cast<double>(memory.state_bytes + memory.gradient_bytes);
  const double parameters = static_cast<double>(run.model.Parameters()) / layout.tensor_parallel() /
                            layout.pipeline_parallel();
  prediction.their_memory_gib =
      prediction.memory_gib + (parameters * run.their_state_bytes - states) / kGiB;
  return prediction;
}

Errors ErrorsOf(const std::vector<PublishedRun>& runs, const std::string& source) {
  Errors errors;
  std::vector<const PublishedRun*> compared;
  for (const PublishedRun& run : runs) {
    if (!Comparable(run, source)) continue;
    const double error = Ratio(run) - 1;
    errors.mean_error += std::abs(error);
    errors.bias += error;
    compared.push_back(&run);
  }
  errors.runs = static_cast<int>(compared.size());
  if (errors.runs == 0) return errors;
  errors.mean_error /= errors.runs;
  errors.bias /= errors.runs;
  for (size_t i = 0; i < compared.size(); ++i) {
    for (size_t j = i + 1; j < compared.size(); ++j) {
      const PublishedRun *a = compared[i], *b = compared[j];
      if (SourceOf(*a) != SourceOf(*b) || a->model_name != b->model_name) continue;
      if (a->tokens_per_second_per_device < b->tokens_per_second_per_device) std::swap(a, b);
      if (a->tokens_per_second_per_device < kFarApart * b->tokens_per_second_per_device) continue;
      ++errors.pairs;
      if (Predict(*a).tokens_per_second_per_device <= Predict(*b).tokens_per_second_per_device) {
        ++errors.pairs_wrong;
      }
    }
  }
  return errors;
}

double LeaveOneSourceOutError(const std::vector<PublishedRun>& runs) {
  double sum = 0;
  int count = 0;
  for (const PublishedRun& left : runs) {
    if (!Comparable(left, "")) continue;
    std::vector<double> ratios;
    for (const PublishedRun& other : runs) {
      if (!Comparable(other, "") || SourceOf(other) == SourceOf(left)) continue;
      if (other.generation == left.generation) ratios.push_back(Ratio(other));
    }
    double factor = 1;
    if (!ratios.empty()) {
      std::nth_element(ratios.begin(), ratios.begin() + ratios.size() / 2, ratios.end());
      factor = ratios[ratios.size() / 2];
    }
    sum += std::abs(Ratio(left) / factor - 1);
    ++count;
  }
  return count == 0 ? 0 : sum / count;
}

}  // namespace terrace
