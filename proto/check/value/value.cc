// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/value.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace::check {
namespace {

constexpr v1::Axis kAllAxes[] = {v1::TENSOR, v1::CONTEXT, v1::DATA_SHARD, v1::DATA_REPLICA,
                                 v1::PIPELINE};

// Of what a value lacks, in words for people.
std::string LackText(const Value& value, uint32_t tensor) {
  AxisMask axes = value.varies | value.parts;
  if (value.same_block < tensor) axes |= Bit(v1::TENSOR);
  if (axes == 0) return "is the same on all ranks";
  const std::string blocks = value.same_block > 1 && value.same_block < tensor
                                 ? absl::StrCat(" in blocks of ", value.same_block)
                                 : "";
  return absl::StrCat("differs over ", AxesText(axes), blocks);
}

bool LackTheSame(const Value& a, const Value& b) {
  return a.kind == b.kind && a.varies == b.varies && a.parts == b.parts &&
         a.same_block == b.same_block && a.pipeline_group == b.pipeline_group &&
         a.shard_block == b.shard_block;
}

}  // namespace

std::string AxesText(AxisMask axes) {
  std::string text;
  for (v1::Axis axis : kAllAxes) {
    if ((axes & Bit(axis)) == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", v1::Axis_Name(axis));
  }
  return text.empty() ? "no axis" : text;
}

Values::Values(const v1::Grid& grid) : grid_(grid), tensor_(AxisSize(grid, v1::TENSOR)) {}

size_t ValueHash::operator()(const Value& v) const {
  const uint64_t flags = v.kind | v.zero << 8 | v.padding << 9 | v.foreign << 10 | v.rounded << 11 |
                         v.updated << 12 | v.trained << 13 | v.role << 16;
  // Two small numbers at a time.
  const auto pair = [](int64_t a, int64_t b) {
    return static_cast<uint64_t>(a) << 32 ^ static_cast<uint32_t>(b);
  };
  const uint64_t words[] = {flags,
                            pair(v.varies, v.parts),
                            pair(v.same_block, v.pipeline_group),
                            pair(v.micro_batch, static_cast<int64_t>(v.contributions)),
                            v.marks,
                            pair(v.squared, v.squares),
                            pair(v.summed, v.spoiled_by),
                            pair(v.shard_block, 0),
                            pair(v.scatter, v.origin),
                            pair(v.encoded_by, v.exchanged),
                            static_cast<uint64_t>(v.shift),
                            static_cast<uint64_t>(v.distance)};
  uint64_t hash = 0;
  for (uint64_t word : words) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;  // 2^64 over the golden ratio
    hash ^= hash >> 32;
  }
  return hash;
}

int Values::Number(const Value& value) {
  const auto [entry, is_new] = numbers_.emplace(value, static_cast<int>(by_number_.size()));
  if (is_new) by_number_.push_back(&entry->first);
  return entry->second;
}

int Values::AddScatter(Scatter scatter) {
  scatters_.push_back(std::move(scatter));
  return static_cast<int>(scatters_.size()) - 1;
}

int Values::AddSquares(std::vector<SquareTerm> terms) {
  squares_.push_back(std::move(terms));
  return static_cast<int>(squares_.size()) - 1;
}

AxisMask Values::Large(std::initializer_list<v1::Axis> axes) const {
  AxisMask mask = 0;
  for (v1::Axis axis : axes) {
    if (AxisSize(grid_, axis) > 1) mask |= Bit(axis);
  }
  return mask;
}

AxisMask Values::AxesOf(const v1::Group& group) const {
  AxisMask mask = 0;
  for (v1::Axis axis : kAllAxes) {
    if (MembersOn(grid_, group, axis) > 1) mask |= Bit(axis);
  }
  return mask;
}

Value Values::Constant() const {
  Value value;
  value.same_block = tensor_;
  return value;
}

Value Values::Data(int micro_batch) const {
  Value value = Constant();
  value.varies = Large({v1::CONTEXT, v1::DATA_SHARD, v1::DATA_REPLICA});
  value.micro_batch = micro_batch;
  if (micro_batch >= 0) {
    value.contributions = 1;
    value.marks = MarkOf(micro_batch);
  }
  return value;
}

Value Values::WithoutPlace(Value value) {
  value.role = Value::kNothing;
  value.rounded = value.updated = false;
  value.origin = -1;
  value.distance = 0;
  return value;
}

Value Values::Spoiled(int instruction, std::string why) {
  Value value;
  value.spoiled_by = instruction;
  value.spoiled_why = std::move(why);
  return value;
}

Value Values::AsInput(const Value& value, int instruction) const {
  if (value.spoiled_by >= 0) return value;
  if (value.exchanged >= 0)
    return Spoiled(instruction, "computes with parts that are not added up");
  if (value.updated) {
    return Spoiled(instruction, "computes with state that this step has updated already");
  }
  if (value.zero) return value;
  if (value.micro_batch == kSeveralMicroBatches) {
    return Spoiled(instruction, "computes with a sum over several micro-batches");
  }
  if (value.scatter >= 0) {
    return Spoiled(instruction, "computes with a shard of something that was not gathered");
  }
  if (value.shard_block > 1) return Spoiled(instruction, "computes with a sum of some ranks");
  Value input;
  input.varies = value.varies;
  input.parts = value.parts;
  input.same_block = value.same_block;
  input.trained = value.trained;
  input.micro_batch = value.micro_batch;
  const AxisMask data = Large({v1::DATA_SHARD, v1::DATA_REPLICA});
  if (value.micro_batch == kNoMicroBatch) {
    const AxisMask differs = (value.varies | value.parts) & (data | Bit(v1::CONTEXT));
    if (differs == 0) return input;
    return Spoiled(instruction,
                   absl::StrCat("computes with weights that differ over ", AxesText(differs)));
  }
  if ((data & ~value.varies) != 0) {
    return Spoiled(instruction,
                   absl::StrCat("computes with a sum over ", AxesText(data & ~value.varies)));
  }
  input.contributions = 1;
  input.marks = MarkOf(value.micro_batch);
  return input;
}

Value Values::Flat(const Scatter& scatter, int instruction) const {
  Value flat;
  bool first = true;
  scatter.content.ForEach({0, scatter.shards * scatter.shard_elements},
                          [&](const ByteRange&, int number) {
                            if (number == ByteMap::kNone) return;
                            const Value value = WithoutPlace((*this)[number]);
                            if (!first && value != flat) {
                              flat = Spoiled(instruction, "scatters what is not of one kind");
                            } else {
                              flat = value;
                            }
                            first = false;
                          });
  flat = WithoutPlace(std::move(flat));
  flat.parts |= scatter.axes;
  return flat;
}

Value Values::Join(const Value& a, const Value& b, int instruction) const {
  if (a.spoiled_by >= 0 || b.zero) return a;
  if (b.spoiled_by >= 0 || a.zero) return b;
  if (a == b) return a;
  // The parts of a sequence that tensor-parallel ranks hold go with what is the same on all of
  // them.
  const AxisMask tensor = Bit(v1::TENSOR);
  if (((a.parts & tensor) != 0 && b.same_block < tensor_) ||
      ((b.parts & tensor) != 0 && a.same_block < tensor_)) {
    return Spoiled(instruction,
                   "mixes parts of a sequence with what tensor-parallel ranks do not share");
  }
  Value value = Constant();
  value.varies = a.varies | b.varies;
  value.parts = a.parts | b.parts;
  value.same_block = std::gcd(a.same_block, b.same_block);
  value.trained = a.trained || b.trained;
  if (a.micro_batch != b.micro_batch && a.micro_batch != kNoMicroBatch &&
      b.micro_batch != kNoMicroBatch) {
    return Spoiled(instruction, "computes with several micro-batches at once");
  }
  const int micro_batch = a.micro_batch == kNoMicroBatch ? b.micro_batch : a.micro_batch;
  value.micro_batch = micro_batch;
  if (micro_batch >= 0) {
    value.contributions = 1;
    value.marks = MarkOf(micro_batch);
  }
  return value;
}

Value Values::Add(const Value& a, const Value& b, int instruction) {
  if (a.spoiled_by >= 0) return a;
  if (b.spoiled_by >= 0) return b;
  if (a.zero || b.zero) {
    Value value = a.zero ? b : a;
    value.squared = value.encoded_by = -1;
    return value;
  }
  if (!LackTheSame(a, b)) {
    return Spoiled(instruction, absl::StrCat("adds what ", LackText(b, tensor_), " to what ",
                                             LackText(a, tensor_)));
  }
  Value value = a;
  if (a.role == Value::kGradient && b.role == Value::kGradient) {
    if (a.distance != b.distance) {
      return Spoiled(instruction, "adds gradients of different places");
    }
    value.origin = a.origin == b.origin ? a.origin : links_.Merge(a.origin, b.origin);
  } else if (b.role == Value::kGradient) {
    value.role = b.role;
    value.origin = b.origin;
    value.distance = b.distance;
  } else if (a.role != Value::kGradient) {
    value = WithoutPlace(std::move(value));
  }
  if (a.micro_batch != b.micro_batch) value.micro_batch = kSeveralMicroBatches;
  value.trained = a.trained || b.trained;
  value.contributions += b.contributions;
  value.marks = AddMarks(value.marks, b.marks);
  value.squared = value.encoded_by = -1;
  return value;
}

Value Values::Sum(const Value& value, const v1::Group& group, int group_index,
                  int instruction) const {
  if (value.spoiled_by >= 0) return value;
  const AxisMask axes = AxesOf(group);
  Value sum = value;
  sum.squared = sum.encoded_by = -1;
  if ((axes & Bit(v1::PIPELINE)) != 0) {
    if (value.pipeline_group >= 0) {
      return Spoiled(instruction, "sums over the stages a second time");
    }
    sum.pipeline_group = group_index;
  }
  if (value.zero) {
    sum.zero = sum.pipeline_group < 0;
    sum.foreign = !sum.zero;
    return sum;
  }
  if (value.kind == Value::kSquares) {
    if ((value.summed & axes) != 0) {
      return Spoiled(instruction, absl::StrCat("sums squares over ", AxesText(value.summed & axes),
                                               " a second time"));
    }
    if ((axes & Bit(v1::TENSOR)) != 0 && group.tensor_block() > 0 &&
        group.tensor_block() < tensor_) {
      return Spoiled(instruction, absl::StrCat("sums squares over ", group.tensor_block(), " of ",
                                               tensor_, " ranks along TENSOR"));
    }
    sum.summed |= axes;
    return sum;
  }
  const AxisMask across = axes & ~Bit(v1::PIPELINE) & ~Bit(v1::TENSOR);
  const AxisMask same = across & ~(value.varies | value.parts);
  if (same != 0 && !value.foreign) {
    return Spoiled(instruction, absl::StrCat("sums over ", AxesText(same),
                                             " what is the same on all of its ranks"));
  }
  if ((across & Bit(v1::DATA_SHARD)) != 0) {
    const uint32_t block = std::max(1u, group.shard_stride());
    if (value.shard_block != block) {
      return Spoiled(instruction,
                     absl::StrCat("sums over ranks of DATA_SHARD that are ", block, " apart what ",
                                  value.shard_block, " neighbours have summed"));
    }
    sum.shard_block = std::max(1u, group.shard_block());
  }
  const AxisMask left = sum.shard_block > 1 ? Bit(v1::DATA_SHARD) : 0;
  sum.varies &= ~across | left;
  sum.parts &= ~across | left;
  if ((axes & Bit(v1::TENSOR)) == 0) return sum;
  const uint32_t block = group.tensor_block() == 0 ? tensor_ : group.tensor_block();
  const bool whole_parts = (value.parts & Bit(v1::TENSOR)) != 0 && block == tensor_;
  if (!whole_parts && value.same_block != 1 && !value.foreign) {
    return Spoiled(instruction, "sums over TENSOR what is the same on several of its ranks");
  }
  sum.parts &= ~Bit(v1::TENSOR);
  sum.same_block = block;
  return sum;
}

Value Values::Gather(const Value& value, const v1::Group& group, int instruction) const {
  if (value.spoiled_by >= 0 || value.zero) return value;
  if (value.exchanged >= 0) return Spoiled(instruction, "collects parts that are not added up");
  if (value.scatter >= 0) return Spoiled(instruction, "gives all ranks the shard of one");
  const AxisMask axes = AxesOf(group);
  const AxisMask lost = axes & value.varies & (Bit(v1::DATA_SHARD) | Bit(v1::DATA_REPLICA));
  if (lost != 0) {
    return Spoiled(instruction, absl::StrCat("collects over ", AxesText(lost),
                                             " what was to be summed over it"));
  }
  Value gathered = WithoutPlace(value);
  gathered.varies &= ~axes;
  gathered.parts &= ~axes;
  if ((axes & Bit(v1::TENSOR)) != 0) {
    gathered.same_block = group.tensor_block() == 0 ? tensor_ : group.tensor_block();
  }
  return gathered;
}

}  // namespace terrace::check
