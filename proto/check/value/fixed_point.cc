// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/fixed_point.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/tensor_view.h"
#include "proto/check/instruction/refuse.h"

namespace terrace::check {
namespace {

using Maps = std::array<const ByteMap*, 3>;

// Pieces of `range` in which each of the maps has one number.
template <typename Visit>
void ForEachPiece(const Maps& maps, const ByteRange& range, Visit visit) {
  maps[0]->ForEach(range, [&](const ByteRange& first, int a) {
    maps[1]->ForEach(first, [&](const ByteRange& second, int b) {
      maps[2]->ForEach(second, [&](const ByteRange& piece, int c) {
        visit(piece, std::array<int, 3>{a, b, c});
      });
    });
  });
}

// Without what may change from one iteration to the next.
Value Fixed(Value value) {
  value.micro_batch = std::min(value.micro_batch, 0);
  value.contributions = 0;
  value.marks = 0;
  value.scatter = std::min(value.scatter, 0);
  value.encoded_by = std::min(value.encoded_by, 0);
  if (value.role == Value::kGradient) value.origin = 0;
  return value;
}

bool HoldsAny(const ByteMap& content, const ByteRange& range) {
  bool any = false;
  content.ForEach(range, [&](const ByteRange&, int number) { any |= number != ByteMap::kNone; });
  return any;
}

}  // namespace

FixedPoint::FixedPoint(const v1::Program& program, const CheckedSequence& sequence, Flow* flow)
    : program_(program), sequence_(sequence), flow_(*flow) {}

absl::Status FixedPoint::Reach(int i) {
  if (sequence_.written == nullptr || next_ == sequence_.written->repeats.size())
    return absl::OkStatus();
  const Repeat& repeat = sequence_.written->repeats[next_];
  if (i < repeat.begin || (i - repeat.begin) % repeat.count != 0) return absl::OkStatus();
  const int64_t head = (i - repeat.begin) / repeat.count;
  gradients_.push_back(flow_.values().links().gradients());
  const int64_t kept = head - (repeat.shown + 1 - kHeads);
  if (repeat.left_out > 0 && kept >= 0) heads_[kept] = ContentAt(repeat, head);
  if (head < repeat.shown) return absl::OkStatus();
  if (repeat.left_out > 0) RETURN_IF_ERROR(Close(repeat));
  ++next_;
  gradients_.clear();
  known_.clear();
  // A loop may begin where this one ends.
  return Reach(i);
}

FixedPoint::Content FixedPoint::ContentAt(const Repeat& repeat, int64_t iteration) const {
  Content content;
  for (const uint32_t buffer : repeat.plain) content[{buffer, kPlain}] = flow_.content(buffer);
  for (const uint32_t buffer : repeat.arrays) content[{buffer, kPlain}] = flow_.content(buffer);
  for (const Repeat::Slots& slots : repeat.slots) {
    for (auto value = slots.values.lower_bound(iteration + slots.least);
         value != slots.values.end(); ++value) {
      if (flow_.content(value->second).empty()) continue;
      content[{slots.first, value->first - iteration}] = flow_.content(value->second);
    }
  }
  return content;
}

absl::Status FixedPoint::Close(const Repeat& repeat) {
  std::map<Key, bool> keys;
  for (const Content& content : heads_) {
    for (const auto& [key, map] : content) keys[key] = true;
  }
  for (const auto& [key, present] : keys) {
    const bool array = key.second == kPlain && std::find(repeat.arrays.begin(), repeat.arrays.end(),
                                                         key.first) != repeat.arrays.end();
    if (!array) RETURN_IF_ERROR(CloseBuffer(repeat, key));
  }
  for (const uint32_t buffer : repeat.arrays) RETURN_IF_ERROR(CloseArray(repeat, buffer));
  return absl::OkStatus();
}

absl::Status FixedPoint::CloseBuffer(const Repeat& repeat, const Key& key) {
  static const ByteMap nothing;
  Maps maps;
  for (int h = 0; h < kHeads; ++h) {
    const auto found = heads_[h].find(key);
    maps[h] = found == heads_[h].end() ? &nothing : &found->second;
  }
  uint32_t buffer = key.first;
  if (key.second != kPlain) {
    for (const Repeat::Slots& slots : repeat.slots) {
      if (slots.first != key.first) continue;
      const auto value = slots.values.find(key.second + repeat.shown);
      if (value != slots.values.end()) buffer = value->second;
    }
  }
  absl::Status status;
  std::vector<std::pair<ByteRange, int>> after;
  const ByteRange all = {0, program_.buffers(static_cast<int>(buffer)).bytes()};
  ForEachPiece(maps, all, [&](const ByteRange& bytes, const Numbers& numbers) {
    if (!status.ok()) return;
    const absl::StatusOr<int> number = After(repeat, numbers);
    if (number.ok()) {
      if (*number != ByteMap::kNone) after.emplace_back(bytes, *number);
      return;
    }
    status = Refuse(LoopText(repeat), ": byte ", bytes.begin, " of ", BufferText(program_, buffer),
                    " holds ", TextOf(numbers[0]), " before its last iteration but one, ",
                    TextOf(numbers[1]), " before the last one and ", TextOf(numbers[2]),
                    " behind it, ", number.status().message());
  });
  for (const auto& [bytes, number] : after) flow_.Set(buffer, bytes, number);
  return status;
}

absl::StatusOr<int> FixedPoint::After(const Repeat& repeat, const Numbers& numbers) {
  const auto known = known_.find(numbers);
  if (known != known_.end()) return known->second;
  const auto none = std::count(numbers.begin(), numbers.end(), ByteMap::kNone);
  if (none == kHeads) return ByteMap::kNone;
  const char* const rule = "which is not the same with each iteration, moved on by it";
  if (none > 0) return absl::InvalidArgumentError(rule);
  const Value& a = flow_.values()[numbers[0]];
  const Value& b = flow_.values()[numbers[1]];
  const Value& c = flow_.values()[numbers[2]];
  if (a.spoiled_by >= 0 && b.spoiled_by >= 0 && c.spoiled_by >= 0) return numbers[2];
  const int64_t by = repeat.micro_batches;
  const auto encoded = [&repeat](const Value& value, const Value& later) {
    return later.encoded_by == value.encoded_by ||
           later.encoded_by == value.encoded_by + repeat.count;
  };
  if (!IsMoved(a, b, by, 0) || !IsMoved(b, c, by, 1) || !encoded(a, b) || !encoded(b, c) ||
      b.contributions - a.contributions != c.contributions - b.contributions) {
    return absl::InvalidArgumentError(rule);
  }
  if (c.scatter >= 0) {
    ASSIGN_OR_RETURN(const int number, AfterScatter(repeat, numbers));
    return known_[numbers] = number;
  }
  const int64_t moved = repeat.left_out * by;
  const uint64_t times = (c.contributions - b.contributions) / static_cast<uint64_t>(by);
  Value after = c;
  if (after.micro_batch >= 0) {
    const int64_t micro_batch = after.micro_batch + moved;
    if (micro_batch >= program_.rules().micro_batches())
      return absl::InvalidArgumentError("which is of a micro-batch that does not exist in the end");
    after.micro_batch = static_cast<int>(micro_batch);
  }
  after.contributions += times * static_cast<uint64_t>(moved);
  after.marks = AddMarks(MoveMarks(c.marks, moved), RepeatMarks(MarksBelow(moved), times));
  return known_[numbers] = flow_.values().Number(after);
}

absl::StatusOr<int> FixedPoint::AfterScatter(const Repeat& repeat, const Numbers& numbers) {
  std::array<const Scatter*, kHeads> of;
  Maps maps;
  for (int h = 0; h < kHeads; ++h) {
    of[h] = &flow_.values().scatter(flow_.values()[numbers[h]].scatter);
    maps[h] = &of[h]->content;
    if (of[h]->shard_elements != of[0]->shard_elements || of[h]->shards != of[0]->shards ||
        of[h]->axes != of[0]->axes || of[h]->block != of[0]->block) {
      return absl::InvalidArgumentError("which are shards of different places");
    }
  }
  Scatter after = {.shard_elements = of[0]->shard_elements,
                   .shards = of[0]->shards,
                   .axes = of[0]->axes,
                   .block = of[0]->block};
  absl::Status status;
  ForEachPiece(maps, {0, after.shards * after.shard_elements},
               [&](const ByteRange& elements, const Numbers& piece) {
                 if (!status.ok()) return;
                 const absl::StatusOr<int> number = After(repeat, piece);
                 if (!number.ok()) {
                   status = number.status();
                 } else if (*number != ByteMap::kNone) {
                   after.content.Set(elements, *number);
                 }
               });
  RETURN_IF_ERROR(status);
  Value value = flow_.values()[numbers[kHeads - 1]];
  value.scatter = flow_.values().AddScatter(std::move(after));
  return flow_.values().Number(value);
}

bool FixedPoint::IsMoved(const Value& value, const Value& later, int64_t by, int head) {
  if (Fixed(value) != Fixed(later) || later.contributions < value.contributions) return false;
  if (value.micro_batch >= 0 && later.micro_batch != value.micro_batch + by) return false;
  const uint64_t more = later.contributions - value.contributions;
  if (more % static_cast<uint64_t>(by) != 0) return false;
  const Marks of_iteration = RepeatMarks(MarksBelow(by), more / static_cast<uint64_t>(by));
  return later.marks == AddMarks(MoveMarks(value.marks, by), of_iteration) &&
         (value.role != Value::kGradient || IsOneGradient(value, later, head));
}

// A sum that all iterations add to, or one that each begins anew.
bool FixedPoint::IsOneGradient(const Value& value, const Value& later, int head) {
  const int at = static_cast<int>(gradients_.size()) - kHeads + head;
  return flow_.values().links().AreOne(value.origin, later.origin) ||
         Age(value.origin, at) == Age(later.origin, at + 1);
}

// How many iterations before this head it was made; one that was made before the loop has no age
// that another could have at the next head.
int FixedPoint::Age(int gradient, int head) const {
  int age = 0;
  while (age < head && gradients_[head - age] > gradient) ++age;
  return gradients_[head - age] > gradient ? -1 - head : age;
}

// ---- arrays -------------------------------------------------------------------------------------

int64_t FixedPoint::RowBytes(uint32_t buffer) const {
  const v1::Buffer& array = program_.buffers(static_cast<int>(buffer));
  int64_t bytes = kernels::SizeOf(static_cast<kernels::DType>(array.dtype()));
  for (int d = 1; d < array.shape_size(); ++d) bytes *= array.shape(d);
  return bytes;
}

// How many there are from the first on, all others being empty; -1: they do not follow one another.
int64_t FixedPoint::RowsIn(const ByteMap& content, uint32_t buffer) const {
  const int64_t row_bytes = RowBytes(buffer);
  const int64_t bytes = program_.buffers(static_cast<int>(buffer)).bytes();
  int64_t rows = 0;
  while ((rows + 1) * row_bytes <= bytes &&
         HoldsAny(content, {rows * row_bytes, (rows + 1) * row_bytes})) {
    ++rows;
  }
  return HoldsAny(content, {rows * row_bytes, bytes}) ? -1 : rows;
}

// Rows of one kind, each of its micro-batch. Those of the iterations that were left out are counted
// with the last one, for whoever sums up all.
absl::Status FixedPoint::CloseArray(const Repeat& repeat, uint32_t buffer) {
  const Key key = {buffer, kPlain};
  std::array<int64_t, kHeads> rows;
  for (int h = 0; h < kHeads; ++h) rows[h] = RowsIn(heads_[h][key], buffer);
  const auto refuse = [&](const auto&... rule) {
    return Refuse(LoopText(repeat), ": ", BufferText(program_, buffer),
                  ", an array with a row a micro-batch, ", rule...);
  };
  if (rows[0] < 0 || rows[1] != rows[0] + repeat.micro_batches ||
      rows[2] != rows[1] + repeat.micro_batches) {
    return refuse("does not get the rows of each iteration, one behind the other");
  }
  const ByteMap& content = heads_[kHeads - 1][key];
  const int64_t row_bytes = RowBytes(buffer);
  for (int64_t row = 0; row < rows[2]; ++row) {
    bool same = true;
    content.ForEach({0, row_bytes}, [&](const ByteRange& first, int number) {
      const int64_t begin = row * row_bytes;
      content.ForEach({first.begin + begin, first.end + begin}, [&](const ByteRange&, int other) {
        if (number == ByteMap::kNone || other == ByteMap::kNone) {
          same = same && number == other;
          return;
        }
        const Value& value = flow_.values()[number];
        const Value& later = flow_.values()[other];
        const bool plain = value.scatter < 0 && value.role == Value::kNothing;
        same = same && plain && value.contributions == later.contributions &&
               (row == 0 || IsMoved(value, later, row, 0));
      });
    });
    if (!same) return refuse("holds something else in row ", row, " than in row 0, moved on");
  }
  const int64_t moved = repeat.left_out * repeat.micro_batches;
  std::vector<std::pair<ByteRange, int>> after;
  content.ForEach({(rows[2] - 1) * row_bytes, rows[2] * row_bytes},
                  [&](const ByteRange& bytes, int number) {
                    if (number == ByteMap::kNone) return;
                    Value value = flow_.values()[number];
                    if (value.micro_batch >= 0) value.micro_batch = kSeveralMicroBatches;
                    value.contributions *= static_cast<uint64_t>(moved) + 1;
                    value.marks = SpreadMarks(value.marks, moved + 1);
                    after.emplace_back(bytes, flow_.values().Number(value));
                  });
  for (const auto& [bytes, number] : after) flow_.Set(buffer, bytes, number);
  return absl::OkStatus();
}

// ---- words --------------------------------------------------------------------------------------

std::string FixedPoint::LoopText(const Repeat& repeat) const {
  return absl::StrCat("loop ", repeat.loop, " of '", sequence_.sequence->name(), "' (",
                      repeat.count, " instructions from ",
                      sequence_.sequence->instructions(repeat.begin).id(), " on)");
}

std::string FixedPoint::TextOf(int number) const {
  if (number == ByteMap::kNone) return "nothing";
  const Value& value = flow_.values()[number];
  if (value.spoiled_by >= 0) return "what is of no use";
  if (value.zero) return "zeros";
  if (value.micro_batch >= 0) return absl::StrCat("micro-batch ", value.micro_batch);
  if (value.scatter >= 0) return "shards";
  if (value.contributions > 0) return absl::StrCat(value.contributions, " contributions");
  return value.role == Value::kState ? "weights" : "what is of no micro-batch";
}

}  // namespace terrace::check
