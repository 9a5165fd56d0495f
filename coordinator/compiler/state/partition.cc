// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/partition.h"

#include <algorithm>
#include <initializer_list>

#include "coordinator/model/lora.h"

namespace terrace::compiler {
namespace {

using Range = v1::StateRange;

enum class Way {
  kWhole,
  kOutputs,     // of a product
  kInputs,      // of a product
  kVocabulary,  // of a table
};

// Where ranks split a layer's inputs they split A of its adapter; where they split outputs, B.
Way WayOf(TensorRole role) {
  using enum TensorRole;
  if (IsAdapter(role)) {
    const Way way = WayOf(AdaptedRole(role));
    const bool splits = way == (IsLoraA(role) ? Way::kInputs : Way::kOutputs);
    return splits ? way : Way::kWhole;
  }
  switch (role) {
    case kTokenEmbedding:
    case kLmHead:
      return Way::kVocabulary;
    case kQkv:
    case kQkvBias:
    case kQ:
    case kQBias:
    case kK:
    case kKBias:
    case kV:
    case kVBias:
    case kMlpUp:
    case kMlpUpBias:
    case kMlpGate:
    case kMlpGateBias:
      return Way::kOutputs;
    case kAttentionOut:
    case kMlpDown:
      return Way::kInputs;
    default:
      return Way::kWhole;
  }
}

// True where ranks split the tensor by the heads of keys and values.
bool IsKeyOrValue(TensorRole role) {
  using enum TensorRole;
  return role == kK || role == kV || role == kKBias || role == kVBias || role == kKLoraB ||
         role == kVLoraB;
}

bool IsFusedQkv(TensorRole role) {
  using enum TensorRole;
  return role == kQkv || role == kQkvBias || role == kQkvLoraB;
}

bool IsGate(TensorRole role) {
  using enum TensorRole;
  return role == kMlpGate || role == kMlpGateBias || role == kMlpGateLoraB;
}

bool IsHeadNorm(TensorRole role) {
  return role == TensorRole::kQNorm || role == TensorRole::kKNorm;
}

int64_t RowsOf(const Tensor& tensor) { return tensor.shape.size() < 2 ? 1 : tensor.shape[0]; }
int64_t ColumnsOf(const Tensor& tensor) { return tensor.elements() / RowsOf(tensor); }

// The whole of the tensor, or an even share along one side of it.
Part Share(const Tensor& tensor, Range::Split split, int64_t size) {
  Part part = {
      .tensor = &tensor, .rows = RowsOf(tensor), .columns = ColumnsOf(tensor), .split = split};
  if (split == Range::BY_ROWS) part.rows = size;
  if (split == Range::BY_COLUMNS) part.columns = size;
  return part;
}

class Partitioner {
 public:
  Partitioner(const ModelConfig& config, const Parallel& parallel)
      : config_(config), parallel_(parallel) {}

  std::vector<Part> PartsOf(const Tensor& tensor) const {
    if (parallel_.tensor() == 1) return {Share(tensor, Range::WHOLE, 0)};
    switch (WayOf(tensor.role)) {
      case Way::kVocabulary:
        return {Share(tensor, Range::BY_ROWS, VocabularyRows(config_, parallel_))};
      case Way::kOutputs: {
        const int64_t q = config_.heads * config_.head_dim, f = config_.intermediate;
        const int64_t kv = config_.kv_heads * config_.head_dim;
        if (config_.qkv == QkvKind::kFused && IsFusedQkv(tensor.role))
          return Fused(tensor, {q, kv, kv});
        if (config_.fused_gate_up && IsGate(tensor.role)) return Fused(tensor, {f, f});
        return {Share(tensor, SideOfOutputs(tensor), Outputs(tensor))};
      }
      case Way::kInputs: {
        const bool rows = InputsAreRows(tensor);
        const int64_t inputs = rows ? RowsOf(tensor) : ColumnsOf(tensor);
        return {
            Share(tensor, rows ? Range::BY_ROWS : Range::BY_COLUMNS, inputs / parallel_.tensor())};
      }
      default:
        return {Share(tensor, Range::WHOLE, 0)};
    }
  }

  Sums SumsOf(const Tensor& tensor, bool tied) const {
    Sums sums = {.tied = tied};
    if (tied) sums.copies *= 2;
    if (parallel_.tensor() == 1) return sums;
    if (IsKeyOrValue(tensor.role) && parallel_.tensor_block > 1) {
      sums.tensor_block = true;
      sums.copies *= parallel_.tensor_block;
    }
    if (WayOf(tensor.role) != Way::kWhole) return sums;
    sums.copies *= static_cast<int>(parallel_.tensor());
    // Each rank has seen its own heads, or inputs or outputs of an adapted layer, or with sequence
    // parallelism its own tokens. Positions are the exception: their gradient comes from all
    // tokens.
    sums.tensor = IsHeadNorm(tensor.role) || IsAdapter(tensor.role) ||
                  (parallel_.sequence_parallel && tensor.role != TensorRole::kPositionEmbedding);
    return sums;
  }

 private:
  // Adapters are stored as those of other families.
  bool InputsAreRows(const Tensor& tensor) const {
    return config_.conv1d_weights && !IsAdapter(tensor.role);
  }

  Range::Split SideOfOutputs(const Tensor& tensor) const {
    const bool columns = tensor.shape.size() < 2 || InputsAreRows(tensor);
    return columns ? Range::BY_COLUMNS : Range::BY_ROWS;
  }

  // Elements of a rank along the outputs of a product.
  int64_t Outputs(const Tensor& tensor) const {
    if (IsKeyOrValue(tensor.role)) return LocalKeyHeads(config_, parallel_) * config_.head_dim;
    const bool columns = SideOfOutputs(tensor) == Range::BY_COLUMNS;
    return (columns ? ColumnsOf(tensor) : RowsOf(tensor)) / parallel_.tensor();
  }

  // One tensor of several layers' outputs, so many each: a share of each.
  std::vector<Part> Fused(const Tensor& tensor, std::initializer_list<int64_t> outputs) const {
    const Range::Split side = SideOfOutputs(tensor);
    std::vector<Part> parts;
    int64_t begin = 0;
    for (const int64_t size : outputs) {
      Part part = Share(tensor, side, size / parallel_.tensor());
      (side == Range::BY_ROWS ? part.row : part.column) = begin;
      parts.push_back(part);
      begin += size;
    }
    return parts;
  }

  const ModelConfig& config_;
  const Parallel& parallel_;
};

// Vectors and columns of one tensor stand side by side, tensors of a matrix and rows of one below
// the other.
void Arrange(Parameter* parameter) {
  std::vector<Part>& parts = parameter->parts;
  const bool is_vector = parameter->first().shape.size() < 2;
  const bool of_columns =
      parts.size() > 1 && parts[0].tensor == parts[1].tensor && parts[0].split == Range::BY_COLUMNS;
  const bool side_by_side = is_vector || of_columns;
  int64_t rows = 0, columns = 0;
  for (Part& part : parts) {
    part.offset = side_by_side ? columns : rows * part.columns;
    rows = side_by_side ? part.rows : rows + part.rows;
    columns = side_by_side ? columns + part.columns : part.columns;
  }
  for (Part& part : parts) part.row_stride = columns;
  parameter->shape = is_vector ? Dims{columns} : Dims{rows, columns};
}

}  // namespace

bool SplitByInputs(TensorRole role) { return WayOf(role) == Way::kInputs; }

int64_t VocabularyRows(const ModelConfig& config, const Parallel& parallel) {
  return (config.vocabulary + parallel.tensor() - 1) / parallel.tensor();
}

int64_t LocalHeads(const ModelConfig& config, const Parallel& parallel) {
  return config.heads / parallel.tensor();
}

int64_t LocalKeyHeads(const ModelConfig& config, const Parallel& parallel) {
  return std::max<int64_t>(1, config.kv_heads / parallel.tensor());
}

std::vector<TensorRole> StoredWith(TensorRole role, const Parallel& parallel) {
  using enum TensorRole;
  const bool kv_apart = parallel.tensor_block > 1;  // its gradient takes another way
  switch (role) {
    case kQ:
      return kv_apart ? std::vector<TensorRole>{} : std::vector<TensorRole>{kK, kV};
    case kQBias:
      return kv_apart ? std::vector<TensorRole>{} : std::vector<TensorRole>{kKBias, kVBias};
    case kK:
      return {kV};
    case kKBias:
      return {kVBias};
    case kMlpGate:
      return {kMlpUp};
    case kMlpGateBias:
      return {kMlpUpBias};
    default:
      break;
  }
  std::vector<TensorRole> roles;
  if (IsLoraA(role)) roles = StoredWith(AdaptedRole(role), parallel);
  for (TensorRole& stored : roles) stored = LoraA(stored);
  return roles;
}

void Partition(const ModelConfig& config, const std::vector<const Tensor*>& tensors,
               const Parallel& parallel, Parameter* parameter) {
  const Partitioner partitioner(config, parallel);
  for (const Tensor* tensor : tensors) {
    for (const Part& part : partitioner.PartsOf(*tensor)) parameter->parts.push_back(part);
  }
  Arrange(parameter);
  const Tensor& first = *tensors[0];
  if (IsKeyOrValue(first.role)) parameter->split_block = parallel.tensor_block;
  const bool tied = first.role == TensorRole::kTokenEmbedding && parallel.groups.tied != kNone;
  parameter->sums = partitioner.SumsOf(first, tied);
}

}  // namespace terrace::compiler
