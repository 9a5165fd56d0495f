// SPDX-License-Identifier: Apache-2.0
#include "coordinator/layout/rules.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "coordinator/layout/dealing.h"
#include "coordinator/layout/parameter_groups.h"
#include "coordinator/model/lora.h"

namespace terrace {
namespace {

uint32_t AtLeastOne(uint32_t degree) { return std::max<uint32_t>(1, degree); }

// "2 or 4": the values next to `got` that work, in [1, high].
std::string NearestThatWorks(int64_t got, int64_t high, const std::function<bool(int64_t)>& works) {
  std::vector<int64_t> near;
  for (int64_t below = std::min(got - 1, high); below >= 1 && near.empty(); --below) {
    if (works(below)) near.push_back(below);
  }
  const size_t found = near.size();
  for (int64_t above = got + 1; above <= high && near.size() == found; ++above) {
    if (works(above)) near.push_back(above);
  }
  return absl::StrJoin(near, " or ");
}

// Gathers the problems of one layout, which is complete.
class Checker {
 public:
  Checker(const v1::Layout& layout, const Model& model, const v1::JobSpec& spec)
      : layout_(layout),
        model_(model),
        config_(model.config),
        train_(spec.train()),
        data_(spec.data()),
        sequence_(data_.sequence_length()) {}

  absl::Status Check() {
    CheckRanks();
    CheckTensor();
    CheckLengths();
    Append(ScheduleProblems(layout_, config_.layers));
    CheckRecompute();
    CheckSharding();
    if (train_.has_preference()) CheckPairs();
    CheckName("allocator", layout_.allocator(), {"planned", "caching", "expandable"});
    Append(OffloadProblems(layout_));
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void Problem(std::string_view key, const absl::AlphaNum& got, const std::string& must,
               const std::string& way_out = "") {
    problems_.push_back(LayoutProblem(key, std::string(got.Piece()), must, way_out));
  }
  void Append(std::vector<std::string> problems) {
    for (std::string& problem : problems) problems_.push_back(std::move(problem));
  }
  // False when `got` is none of `names`.
  bool CheckName(std::string_view key, const std::string& got,
                 const std::vector<std::string>& names) {
    if (std::find(names.begin(), names.end(), got) != names.end()) return true;
    problems_.push_back(NameProblem(key, got, names));
    return false;
  }

  void CheckRanks();
  void CheckTensor();
  void CheckLengths();
  void CheckSequenceParallel();
  void CheckContext();
  void CheckUlysses(int64_t context);
  void CheckRecompute();
  void CheckSharding();
  void CheckWholeMatrices();
  void CheckReduceBlock();
  void CheckPairs();

  const v1::Layout& layout_;
  const Model& model_;
  const ModelConfig& config_;
  const v1::TrainSpec& train_;
  const v1::DataSpec& data_;
  int64_t sequence_;  // tokens of the samples that are being looked at ...
  std::string_view length_key_ = "data.sequence_length";  // ... and who says so
  std::vector<std::string> problems_;
};

void Checker::CheckRanks() {
  const uint64_t ranks = uint64_t{layout_.data_parallel()} * layout_.tensor_parallel() *
                         layout_.pipeline_parallel() * layout_.context_parallel();
  if (layout_.ranks() == 0 || layout_.ranks() == ranks) return;
  problems_.push_back(absl::StrCat("layout: dp ", layout_.data_parallel(), " x tp ",
                                   layout_.tensor_parallel(), " x pp ", layout_.pipeline_parallel(),
                                   " x cp ", layout_.context_parallel(), " are ", ranks,
                                   " ranks, must be ", layout_.ranks()));
}

void Checker::CheckTensor() {
  const int64_t tp = layout_.tensor_parallel();
  if (config_.qk_norm_whole && tp > 1) {
    return Problem("tp", tp,
                   absl::StrCat("be 1 (", config_.family,
                                " norms all heads of q together and all of k, so each rank needs "
                                "them whole)"),
                   "1, and layout.zero, pp or cp instead");
  }
  const bool apart = config_.qkv == QkvKind::kApart || config_.kv_heads == config_.heads;
  const auto shares_kv = [&](int64_t ranks) {
    return config_.kv_heads % ranks == 0 || (apart && ranks % config_.kv_heads == 0);
  };
  std::vector<std::string> rules;
  if (config_.heads % tp != 0)
    rules.push_back(absl::StrCat("divide the ", config_.heads, " heads"));
  if (config_.intermediate % tp != 0) {
    rules.push_back(absl::StrCat("divide the MLP's ", config_.intermediate, " inner elements"));
  }
  if (!shares_kv(tp)) {
    rules.push_back(absl::StrCat("divide the ", config_.kv_heads, " key-value heads",
                                 apart
                                     ? " or be a multiple of them"
                                     : ", whose weights lie in one tensor with those of queries"));
  }
  if (rules.empty()) return;
  Problem("tp", tp, absl::StrJoin(rules, " and "),
          NearestThatWorks(tp, config_.heads, [&](int64_t ranks) {
            return config_.heads % ranks == 0 && config_.intermediate % ranks == 0 &&
                   shares_kv(ranks);
          }));
}

// What ranks that share the tokens of a sample ask of its length. Shorter samples only where the
// longest are right: what is wrong with several is said once.
void Checker::CheckLengths() {
  const size_t before = problems_.size();
  CheckSequenceParallel();
  CheckContext();
  for (const int64_t length : data_.buckets()) {
    if (problems_.size() > before) break;
    sequence_ = length;
    length_key_ = "data.buckets";
    CheckSequenceParallel();
    CheckContext();
  }
}

void Checker::CheckSequenceParallel() {
  if (!layout_.sequence_parallel()) return;
  const int64_t tp = layout_.tensor_parallel();
  if (tp == 1) {
    return Problem("sequence_parallel", "true",
                   "come with layout.tp of 2 or more: the tensor-parallel ranks share the tokens",
                   "false");
  }
  const int64_t row = sequence_ / layout_.context_parallel();  // tokens of a sequence on a rank
  const int64_t tokens = layout_.micro_batch() * row;
  if (tokens % tp == 0) return;
  Problem("sequence_parallel", "true",
          absl::StrCat("have ", tp, " tensor-parallel ranks divide the ", tokens,
                       " tokens of a micro-batch"),
          absl::StrCat("false, or a layout.micro_batch that is a multiple of ",
                       tp / std::gcd(tp, row)));
}

void Checker::CheckContext() {
  const int64_t context = layout_.context_parallel();
  if (!CheckName("context_type", layout_.context_type(), {"ring", "ulysses"})) return;
  if (context == 1) return;
  if (layout_.context_type() == "ulysses" && data_.samples() == "packed") {
    // A rank would have to know where documents start in all of a sequence.
    return Problem("context_type", "ulysses", "be ring with data.samples: packed", "ring");
  }
  if (layout_.context_type() == "ulysses") return CheckUlysses(context);
  if (sequence_ % (2 * context) == 0) return;
  Problem("cp", context,
          absl::StrCat("divide half of ", Absl(length_key_), " ", sequence_,
                       " (ring attention gives each rank two pieces of a sequence)"),
          NearestThatWorks(context, sequence_ / 2,
                           [&](int64_t ranks) { return sequence_ % (2 * ranks) == 0; }));
}

void Checker::CheckUlysses(int64_t context) {
  const int64_t heads = std::max<int64_t>(1, config_.heads / layout_.tensor_parallel());
  const int64_t kv_heads = std::max<int64_t>(1, config_.kv_heads / layout_.tensor_parallel());
  const auto works = [&](int64_t ranks) {
    return sequence_ % ranks == 0 && heads % ranks == 0 && kv_heads % ranks == 0;
  };
  if (works(context)) return;
  std::string way_out = NearestThatWorks(context, kv_heads, works);
  if (sequence_ % (2 * context) == 0) way_out += ", or layout.context_type ring";
  Problem(
      "cp", context,
      absl::StrCat("divide ", Absl(length_key_), " ", sequence_, ", the ", heads, " heads and the ",
                   kv_heads, " key-value heads of a tensor-parallel rank (ulysses)"),
      way_out);
}

void Checker::CheckRecompute() {
  const std::string& recompute = layout_.recompute();
  CheckName("recompute", recompute, {"none", "selective", "block", "every", "sqrt", "full"});
  const int64_t every = layout_.recompute_every();
  if (recompute == "every" && (every < 1 || every > config_.layers)) {
    Problem(
        "recompute_every", every,
        absl::StrCat("be from 1 to the ", config_.layers, " layers with layout.recompute every"));
  }
  const int64_t listed = layout_.recompute_layers_size();
  if (listed != 0 && listed != config_.layers) {
    Problem("recompute_layers", absl::StrCat(listed, " entries"),
            absl::StrCat("have one for each of the ", config_.layers, " layers"));
  }
  for (const std::string& layer : layout_.recompute_layers()) {
    if (!CheckName("recompute_layers", layer, {"none", "selective", "block"})) break;
  }
}

void Checker::CheckSharding() {
  if (layout_.zero_stage() > 3) Problem("zero", layout_.zero_stage(), "be 0, 1, 2 or 3");
  const int64_t dp = layout_.data_parallel();
  const int64_t shard = layout_.shard_size();
  if (shard != 0 && dp % shard != 0) {
    Problem("shard_size", shard, absl::StrCat("divide the ", dp, " data-parallel ranks"),
            NearestThatWorks(shard, dp, [&](int64_t size) { return dp % size == 0; }));
  }
  if (shard > 1 && layout_.zero_stage() == 0) {
    Problem("shard_size", shard, "come with layout.zero 1, 2 or 3");
  }
  if (layout_.stochastic_rounding() && layout_.precision() != "bf16" &&
      layout_.precision() != "fp8") {
    Problem("stochastic_rounding", "true",
            absl::StrCat("be false with train.precision ", layout_.precision()),
            "train.precision bf16 or fp8");
  }
  Append(FormatProblems(layout_, config_));
  CheckWholeMatrices();
  CheckReduceBlock();
  if (layout_.persistent_parameters() < 0) {
    Problem("persistent_parameters", layout_.persistent_parameters(), "not be negative");
  }
}

// Its update needs a matrix, or any tensor, and its gradient together, on the device of a rank.
void Checker::CheckWholeMatrices() {
  const kernels::OptimizerRow& rule = OptimizerOf(layout_);
  if (!UpdatesWholes(rule)) return;
  const std::string why =
      absl::StrCat(" with train.optimizer.name ", Absl(rule.name), ", which updates ",
                   rule.factored ? "tensors" : "matrices", " as a whole");
  if (layout_.zero_stage() == 3)
    Problem("zero", 3, absl::StrCat("be 0, 1 or 2", why), "layout.zero 1");
  if (ReduceCodes(layout_) != nullptr && layout_.zero_stage() > 0) {
    problems_.push_back(absl::StrCat("formats.reduce: got ", layout_.reduce_format(),
                                     ", must be f32 or bf16", why, "; leave it out"));
  }
  if (layout_.tensor_parallel() > 1) {
    Problem("tp", layout_.tensor_parallel(), absl::StrCat("be 1", why),
            "layout.pp, or layout.cp, in its place");
  }
  if (layout_.stochastic_rounding())
    Problem("stochastic_rounding", "true", absl::StrCat("be false", why, ", in fp32"));
  if (MomentFormat(layout_).block > 0) {
    problems_.push_back(absl::StrCat("formats.moments: got ", layout_.moments_format(),
                                     ", must be f32 or bf16", why, "; try bf16"));
  }
  const v1::Offload& offload = layout_.offload();
  for (const auto& [key, shares] : {std::pair("offload.optimizer", &offload.optimizer()),
                                    std::pair("offload.parameter", &offload.parameter()),
                                    std::pair("offload.gradient", &offload.gradient())}) {
    const v1::Tier tier = FarthestTier(*shares);
    if (tier == v1::DEVICE) continue;
    Problem(key, std::string(TierName(tier)), absl::StrCat("be device", why, " on the device"),
            "layout.offload.activation");
  }
}

// The loss of a pair is of all its tokens, and its reference is what is left without adapters.
void Checker::CheckPairs() {
  if (layout_.context_parallel() > 1) {
    Problem("cp", layout_.context_parallel(),
            "be 1 with train.preference, which compares whole answers",
            "layout.tp, pp or zero in its place");
  }
  if (layout_.micro_batch() % 2 != 0) {
    Problem("micro_batch", layout_.micro_batch(), "be even with train.preference: two are a pair",
            absl::StrCat(layout_.micro_batch() + 1));
  }
  for (const Tensor& tensor : model_.tensors) {
    if (IsAdapter(tensor.role) || UpdateOf(train_.optimizer(), config_, tensor).frozen) continue;
    problems_.push_back(absl::StrCat(
        "train.preference: '", tensor.name,
        "' is trained, must be frozen: the reference is the model without its adapters, as it "
        "stays; try ",
        config_.lora.rank > 0 ? "leaving frozen: false out of train.optimizer.groups"
                              : "model.lora: {rank: 16}"));
    break;
  }
}

void Checker::CheckReduceBlock() {
  const int64_t block = layout_.reduce_block();
  if (block <= 1 || IsReduceBlock(layout_, block)) return;
  if (ReduceCodes(layout_) == nullptr) {
    Problem("reduce_block", block,
            absl::StrCat("be left out with formats.reduce ", layout_.reduce_format()),
            "formats.reduce int8");
    return;
  }
  const int64_t shards = layout_.zero_stage() == 0 ? 1 : GridOf(layout_).data_shard();
  const std::string works = NearestThatWorks(
      block, shards, [this](int64_t ranks) { return IsReduceBlock(layout_, ranks); });
  Problem("reduce_block", block,
          absl::StrCat("be 1, or cut the ", shards,
                       " data-parallel ranks that share a state into two blocks or more"),
          works.empty() ? "1" : absl::StrCat(works, ", or 1"));
}

}  // namespace

std::string LayoutProblem(std::string_view key, const std::string& got, const std::string& must,
                          const std::string& way_out) {
  return absl::StrCat("layout.", Absl(key), ": got ", got, ", must ", must,
                      way_out.empty() ? "" : "; try ", way_out);
}

std::string NameProblem(std::string_view key, const std::string& got,
                        const std::vector<std::string>& names) {
  return LayoutProblem(key, absl::StrCat("'", got, "'"), "be one of " + absl::StrJoin(names, ", "),
                       "");
}

v1::Layout Completed(v1::Layout layout) {
  layout.set_data_parallel(AtLeastOne(layout.data_parallel()));
  layout.set_tensor_parallel(AtLeastOne(layout.tensor_parallel()));
  layout.set_pipeline_parallel(AtLeastOne(layout.pipeline_parallel()));
  layout.set_context_parallel(AtLeastOne(layout.context_parallel()));
  if (layout.recompute().empty()) layout.set_recompute("none");
  if (layout.schedule().empty()) layout.set_schedule("1f1b");
  if (layout.interleave() == 0) {
    layout.set_interleave(TwoChunksByDefault(layout.schedule()) ? 2 : 1);
  }
  if (layout.context_type().empty()) layout.set_context_type("ring");
  if (layout.gradient_format().empty()) layout.set_gradient_format("f32");
  if (layout.reduce_format().empty()) layout.set_reduce_format(layout.gradient_format());
  if (layout.data_parallel() * layout.context_parallel() == 1) {
    layout.set_zero_stage(0);
    layout.set_shard_size(0);
  }
  if (layout.allocator().empty()) layout.set_allocator("planned");
  layout = CompletedOffload(std::move(layout));
  if (layout.parameter_format().empty()) {
    const bool free =
        layout.zero_stage() > 0 && FarthestTier(layout.offload().parameter()) == v1::DEVICE;
    const std::string_view format = layout.stochastic_rounding() ? "bf16"
                                    : free                       ? ProductFormat(layout.precision())
                                                                 : "f32";
    layout.set_parameter_format(std::string(format));
  }
  return layout;
}

absl::Status CheckLayout(const v1::Layout& layout, const Model& model, const v1::JobSpec& spec) {
  const v1::Layout complete = Completed(layout);
  return Checker(complete, model, spec).Check();
}

}  // namespace terrace
