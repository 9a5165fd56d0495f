// SPDX-License-Identifier: Apache-2.0
#include "coordinator/layout/formats.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/layout/rules.h"

namespace terrace {
namespace {

class FormatChecker {
 public:
  FormatChecker(const v1::Layout& layout, const ModelConfig& config)
      : layout_(layout), config_(config) {}

  std::vector<std::string> Problems() {
    CheckAll();
    return std::move(problems_);
  }

 private:
  void CheckAll();
  void CheckParameterFormat();
  void CheckActivations();
  void CheckGathers();
  void CheckMoments();
  void CheckResiduals();
  void CheckFrozen();

  const v1::Layout& layout_;
  const ModelConfig& config_;
  std::vector<std::string> problems_;
};

void FormatChecker::CheckAll() {
  CheckParameterFormat();
  CheckActivations();
  CheckGathers();
  CheckMoments();
  CheckResiduals();
  CheckFrozen();
  const std::string& gradient = layout_.gradient_format();
  const std::string& reduce = layout_.reduce_format();
  const bool exact = layout_.precision() == "fp32" || layout_.precision() == "tf32";
  const bool is_zero = layout_.zero_stage() > 0;
  const bool is_cut = is_zero && (layout_.shard_size() != 1 || layout_.context_parallel() > 1);
  if (ReduceCodes(layout_) != nullptr && !is_cut) {
    problems_.push_back(absl::StrCat(
        "formats.reduce: got '", reduce, "', must be ", exact ? "f32" : "f32 or bf16", " with ",
        is_zero ? "shard_size 1" : "zero 0", ", where every rank keeps the whole sum; try ",
        exact ? "f32" : "bf16", ", or ",
        is_zero ? "layout.shard_size 2 or more" : "layout.zero 1 with dp 2 or more"));
  }
  const auto check = [&](std::string_view key, const std::string& format) {
    if (format == "f32" || (format == "bf16" && !exact)) return true;
    problems_.push_back(absl::StrCat(
        "formats.", Absl(key), ": got '", format, "', must be f32",
        exact ? absl::StrCat(" with train.precision ", layout_.precision()) : " or bf16",
        "; try f32"));
    return false;
  };
  if (!check("gradient", gradient)) return;
  if (ReduceCodes(layout_) != nullptr || !check("reduce", reduce)) return;
  if (gradient == "bf16" && reduce == "f32") {
    problems_.push_back(
        "formats.reduce: got 'f32', must be bf16 with formats.gradient bf16: gradients that "
        "are stored in bf16 are sent in bf16; try bf16");
  }
}

void FormatChecker::CheckParameterFormat() {
  const std::string& format = layout_.parameter_format();
  const std::string products(ProductFormat(layout_.precision()));
  const bool stochastic = layout_.stochastic_rounding();
  if (stochastic ? format == "bf16" : format == "f32" || format == products) return;
  problems_.push_back(absl::StrCat(
      "formats.parameter: got '", format, "', must be ",
      stochastic
          ? "bf16 with train.optimizer.stochastic_rounding, which keeps no other weights"
          : absl::StrCat(products == "f32" ? "" : "f32 or ", products, " with train.precision ",
                         layout_.precision(), ": what its products compute with"),
      "; try ", stochastic ? "bf16" : products));
}

void FormatChecker::CheckActivations() {
  const std::string& format = layout_.activation_format();
  if (format.empty()) return;
  const bool exact = layout_.precision() == "fp32" || layout_.precision() == "tf32";
  if (ActivationFormat(layout_) != nullptr && !exact) return;
  problems_.push_back(absl::StrCat(
      "formats.activation: got '", format, "', must be ",
      exact ? absl::StrCat("left out with train.precision ", layout_.precision()) : "fp8 or int8",
      exact ? ": only activations in 16 bits are encoded; leave it out, or try train.precision bf16"
            : "; leave it out, or try fp8"));
}

void FormatChecker::CheckGathers() {
  const std::string& format = layout_.gather_format();
  if (format.empty()) return;
  const auto problem = [&](std::string_view must) {
    problems_.push_back(absl::StrCat("formats.gather: got '", format, "', must be ", Absl(must)));
  };
  if (GatherFormat(layout_) == nullptr) return problem("fp8 or int8; leave it out, or try int8");
  if (layout_.zero_stage() != 3) {
    problem(
        "left out with zero below 3, where no rank gathers weights for a use; leave it out, or try "
        "layout.zero 3 with dp 2 or more");
  }
  if (ProductFormat(layout_.precision()) == "f32" && layout_.precision() != "fp8") {
    problem(absl::StrCat("left out with train.precision ", layout_.precision(),
                         ", whose weights travel as they are; leave it out, or try train.precision "
                         "bf16"));
  }
}

void FormatChecker::CheckResiduals() {
  const std::string& format = layout_.residual_format();
  if (format.empty()) return;
  const auto problem = [&](std::string_view must) {
    problems_.push_back(absl::StrCat("formats.residual: got '", format, "', must be ", Absl(must)));
  };
  if (format != "bf16" && format != "f32") return problem("bf16 or f32; leave it out, or try bf16");
  if (ReduceCodes(layout_) == nullptr) {
    problem(absl::StrCat("left out with formats.reduce ", layout_.reduce_format(),
                         ", which sends no codes; leave it out, or try formats.reduce int8"));
  }
  if (layout_.precision() == "fp16") {
    problem(
        "left out with train.precision fp16, whose loss scale changes between a gradient and the "
        "next; leave it out, or try train.precision bf16");
  }
  if (GridOf(layout_).data_replica() > 1) {
    problem(
        "left out with layout.shard_size: replicas of a shard would each need one in checkpoints; "
        "leave one of them out");
  }
}

void FormatChecker::CheckFrozen() {
  const std::string& format = layout_.frozen_format();
  if (format.empty()) return;
  const auto problem = [&](const std::string& must, const std::string& way_out) {
    problems_.push_back(
        absl::StrCat("formats.frozen: got '", format, "', must be ", must, "; ", way_out));
  };
  if (FrozenFormat(layout_) == nullptr)
    return problem("nf4, int8 or fp8", "leave it out, or try nf4");
  const int64_t block = FrozenBlock(layout_, config_), tp = layout_.tensor_parallel();
  if (block >= kernels::kLeastBlock) return;
  problem(absl::StrCat("left out for this model", tp > 1 ? absl::StrCat(" with tp ", tp) : "",
                       ": rows of its matrices are made of whole blocks of at most ", block,
                       block == 1 ? " element" : " elements", ", and a block needs ",
                       kernels::kLeastBlock),
          tp > 1 ? "leave it out, or try fewer ranks in tp" : "leave it out");
}

void FormatChecker::CheckMoments() {
  const std::string& format = layout_.moments_format();
  const auto problem = [&](const std::string& must, const std::string& way_out) {
    problems_.push_back(
        absl::StrCat("formats.moments: got '", format, "', must ", must, "; try ", way_out));
  };
  const bool known = format.empty() || format == "f32" || format == "bf16" || format == "int8";
  if (!known) return problem("be one of f32, bf16, int8", "bf16");
  if (MomentFormat(layout_).block == 0) return;
  if (layout_.stochastic_rounding()) {
    problem(
        "be f32 or bf16 with train.optimizer.stochastic_rounding, which does not support int8 "
        "blocks",
        "bf16");
  }
  const int64_t block = MomentBlock(layout_, config_);
  if (block >= kernels::kLeastBlock) return;
  const bool shared = layout_.tensor_parallel() > 1;
  const int64_t rank = shared ? config_.lora.rank : 0;
  problem(
      absl::StrCat("be f32 or bf16 for this model with tp ", layout_.tensor_parallel(),
                   ": its matrices are cut into pieces that hold whole blocks of at most ", block,
                   block == 1 ? " element" : " elements", ", and a block needs ",
                   kernels::kLeastBlock),
      rank > 0 && rank % kernels::kLeastBlock != 0
          ? absl::StrCat("bf16, or a model.lora.rank that is a multiple of ", kernels::kLeastBlock)
      : shared ? "bf16, or fewer ranks in tp"
               : "bf16");
}

}  // namespace

std::vector<std::string> FormatProblems(const v1::Layout& layout, const ModelConfig& config) {
  return FormatChecker(layout, config).Problems();
}

const kernels::OptimizerRow& OptimizerOf(const v1::Layout& layout) {
  const kernels::OptimizerRow* row = kernels::FindOptimizer(layout.optimizer());
  return row == nullptr ? kernels::RowOf(kernels::OptimizerRule::kAdamw) : *row;
}

std::string_view OptimizerName(const v1::OptimizerSpec& optimizer) {
  if (optimizer.name() != "sgd" || optimizer.momentum() == 0) return optimizer.name();
  return optimizer.nesterov() ? "nesterov" : "momentum";
}

const kernels::FormatRow& MomentFormat(const v1::Layout& layout) {
  const kernels::FormatRow* row = kernels::FindFormat(layout.moments_format());
  return row == nullptr || OptimizerOf(layout).moments == 0 ? kernels::RowOf(kernels::Format::kF32)
                                                            : *row;
}

namespace {

// Of what specs call "fp8" and "int8" but for moments.
const kernels::FormatRow* BlockFormat(std::string_view name) {
  if (name == "fp8") return &kernels::RowOf(kernels::Format::kFP8);
  return name == "int8" ? &kernels::RowOf(kernels::Format::kInt8Linear) : nullptr;
}

// The largest block of at most so many elements, a power of two, that no rank's rows cut.
// Tables are cut by rows, others by rows or by columns.
int64_t BlockOfRows(const v1::Layout& layout, const ModelConfig& config, int64_t block) {
  const int64_t tp = std::max<uint32_t>(1, layout.tensor_parallel());
  for (const int64_t columns :
       {config.hidden, config.heads * config.head_dim / tp, config.intermediate / tp})
    block = std::gcd(block, columns);
  return config.conv1d_weights ? std::gcd(block, config.hidden / tp) : block;
}

}  // namespace

const kernels::FormatRow* ActivationFormat(const v1::Layout& layout) {
  return BlockFormat(layout.activation_format());
}

const kernels::FormatRow* ReduceCodes(const v1::Layout& layout) {
  if (layout.reduce_format() == "int4") return &kernels::RowOf(kernels::Format::kInt4Linear);
  return BlockFormat(layout.reduce_format());
}

const kernels::FormatRow* CodesOfSums(const v1::Layout& layout) {
  const kernels::FormatRow* const codes = ReduceCodes(layout);
  return codes != nullptr && codes->packed > 1 ? BlockFormat("int8") : codes;
}

std::optional<kernels::DType> ResidualType(const v1::Layout& layout) {
  if (layout.residual_format().empty()) return std::nullopt;
  return layout.residual_format() == "bf16" ? kernels::DType::kBF16 : kernels::DType::kF32;
}

bool IsReduceBlock(const v1::Layout& layout, int64_t ranks) {
  if (layout.zero_stage() == 0 || ReduceCodes(layout) == nullptr) return false;
  const int64_t shards = GridOf(layout).data_shard();
  return ranks > 1 && ranks < shards && shards % ranks == 0;
}

const kernels::FormatRow* GatherFormat(const v1::Layout& layout) {
  return BlockFormat(layout.gather_format());
}

const kernels::FormatRow* FrozenFormat(const v1::Layout& layout) {
  if (layout.frozen_format() == "nf4") return &kernels::RowOf(kernels::Format::kNF4);
  return BlockFormat(layout.frozen_format());
}

int64_t MomentBlock(const v1::Layout& layout, const ModelConfig& config) {
  const int64_t tp = std::max<uint32_t>(1, layout.tensor_parallel());
  const int64_t heads = config.heads / tp * config.head_dim;
  const int64_t keys = std::max<int64_t>(1, config.kv_heads / tp) * config.head_dim;
  const int64_t inner = config.intermediate / tp;
  // What is stored one below the other begins on whole rows.
  int64_t block = kernels::kInt8Block;
  for (const int64_t rows : {heads, keys, inner}) block = std::gcd(block, rows * config.hidden);
  const int64_t rank = config.lora.rank;
  if (rank > 0) block = std::gcd(block, rank * config.hidden);
  if (tp == 1 && layout.tile_bytes() == 0) return block;
  if (tp > 1 && rank > 0) block = std::gcd(block, rank);  // B is cut by rows
  return BlockOfRows(layout, config, block);
}

int64_t FrozenBlock(const v1::Layout& layout, const ModelConfig& config) {
  const kernels::FormatRow* format = FrozenFormat(layout);
  return format == nullptr ? 0 : BlockOfRows(layout, config, format->block);
}

double FrozenBytes(const v1::Layout& layout, const ModelConfig& config) {
  return 1.0 / static_cast<double>(FrozenFormat(layout)->packed) +
         static_cast<double>(sizeof(float)) / static_cast<double>(FrozenBlock(layout, config));
}

std::string_view ProductFormat(std::string_view precision) {
  return precision == "bf16" ? "bf16" : precision == "fp16" ? "f16" : "f32";
}

std::string ReduceFormat(const v1::JobSpec& spec) {
  const std::string& older = spec.layout().communication_dtype();
  if (!spec.formats().reduce().empty() || older.empty()) return spec.formats().reduce();
  return older == "fp32" ? "f32" : older;
}

bool RoundsWeights(const v1::Layout& layout) {
  const std::string& format = layout.parameter_format();
  return !layout.stochastic_rounding() && !format.empty() && format != "f32";
}

}  // namespace terrace
