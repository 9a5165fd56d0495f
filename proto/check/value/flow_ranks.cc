// What communication does to content: beside Flow's own file.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "proto/check/instruction/refuse.h"
#include "proto/check/value/flow.h"
#include "proto/program/grid.h"

namespace terrace::check {

absl::Status Flow::Collective(int i) {
  const v1::CollectiveOp& op = sequence_->sequence->instructions(i).collective();
  const v1::Group& group = program_.groups(op.group());
  if (HasAxis(group, v1::PIPELINE) && op.kind() != v1::ALL_REDUCE) {
    return Refuse(WhereIs(i), " with ", BufferText(program_, At(i, 0).buffer),
                  ": only ALL_REDUCE may cross stages, group '", group.name(), "' does");
  }
  if (IsOfPartOfShards(group) && op.kind() != v1::ALL_TO_ALL) {
    return Refuse(WhereIs(i), " with ", BufferText(program_, At(i, 0).buffer),
                  ": only ALL_TO_ALL may be among some ranks of DATA_SHARD, group '", group.name(),
                  "' has no others");
  }
  switch (op.kind()) {
    case v1::ALL_REDUCE:
      AllReduce(i, group, op.group());
      break;
    case v1::REDUCE_SCATTER:
      ReduceScatter(i, group, op.group());
      break;
    case v1::ALL_GATHER:
      AllGather(i, group);
      break;
    case v1::BROADCAST:
      for (const Piece& piece : PiecesOf(At(i, 0))) {
        content_[At(i, 0).buffer].Set(piece.bytes,
                                      values_.Number(values_.Gather(piece.value, group, i)));
      }
      break;
    default:
      Exchange(i, group, op.group());
  }
  return absl::OkStatus();
}

// Codes of gradients, of which each rank gets its own part from every member. Those of the parts
// are told apart by place, their scales belong to all.
void Flow::ExchangeCodes(int i, const v1::Group& group, int index) {
  const Access& in = At(i, 0);
  const Access& out = At(i, 1);
  const std::vector<Piece> pieces = PiecesOf(in);
  const Value& first = pieces[0].value;
  const bool alike = std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    return piece.value.encoded_by == first.encoded_by &&
           piece.value.encoded_as == first.encoded_as && piece.value.exchanged < 0 &&
           piece.value.scatter == first.scatter;
  });
  if (!alike)
    return Write(out, Values::Spoiled(i, "exchanges codes that were not made together"), i);
  Value value = Values::WithoutPlace(first);
  if (sequence_->sequence->instructions(i).operands(0).dtype() == v1::U8) {
    const absl::StatusOr<Scatter> parts =
        first.scatter < 0 ? PartsOfCodes(in, group) : PartsOfSums(in, group);
    if (!parts.ok())
      return Write(out, Values::Spoiled(i, std::string(parts.status().message())), i);
    value = values_.Constant();
    value.encoded_by = first.encoded_by;
    value.encoded_as = first.encoded_as;
    value.scatter = values_.AddScatter(*parts);
    value.shift = -out.offset * Packed(first);
  }
  value.exchanged = index;
  Write(out, value, i);
}

// What is exchanged first: codes that are whole on each rank.
Scatter Flow::PartsOfCodes(const Access& in, const v1::Group& group) {
  const std::vector<Piece> pieces = PiecesOf(in);
  const int64_t packed = Packed(pieces[0].value);
  const int64_t members = GroupSize(program_.grid(), group);
  Scatter scatter = {.shard_elements = in.row_bytes * packed / members,
                     .shards = members,
                     .axes = values_.AxesOf(group),
                     .block = group.shard_block()};
  for (const Piece& piece : pieces) {
    scatter.content.Set(
        {(piece.bytes.begin - in.offset) * packed, (piece.bytes.end - in.offset) * packed},
        values_.Number(Moved(piece.value, -in.offset * packed)));
  }
  return scatter;
}

// What a block of ranks has summed part by part: the shard of each of them has a part for every
// block, and goes to the rank of its own place there. Part m of shard l is then shard m n + l of n
// ranks to a block.
absl::StatusOr<Scatter> Flow::PartsOfSums(const Access& in, const v1::Group& group) {
  const std::vector<Piece> pieces = PiecesOf(in);
  const Value& first = pieces[0].value;
  const Scatter& from = values_.scatter(first.scatter);
  const int64_t packed = Packed(first), members = GroupSize(program_.grid(), group);
  const bool between_blocks = from.block > 0 && group.shard_stride() == from.block &&
                              values_.AxesOf(group) == Bit(v1::DATA_SHARD);
  if (!between_blocks || pieces.size() > 1 || first.shift != -in.offset * packed ||
      in.row_bytes * packed != from.shard_elements || from.shard_elements % members != 0) {
    return absl::InvalidArgumentError(
        "exchanges parts of sums with ranks that have no use for them");
  }
  const int64_t part = from.shard_elements / members;
  Scatter scatter = {.shard_elements = part,
                     .shards = from.shards * members,
                     .axes = values_.Large({v1::CONTEXT, v1::DATA_SHARD})};
  for (int64_t m = 0; m < members; ++m) {
    for (int64_t l = 0; l < from.shards; ++l) {
      const int64_t begin = (l * members + m) * part;
      const int64_t moved = (m * from.shards + l) * part - begin;
      from.content.ForEach({begin, begin + part}, [&](const ByteRange& elements, int number) {
        if (number == ByteMap::kNone) return;
        scatter.content.Set({elements.begin + moved, elements.end + moved},
                            values_.Number(Moved(values_[number], moved)));
      });
    }
  }
  return scatter;
}

// RING_SHIFT and ALL_TO_ALL: the ranks of one sequence give each other other parts of it, or all
// of them the codes of gradients.
void Flow::Exchange(int i, const v1::Group& group, int index) {
  const std::vector<Piece> pieces = PiecesOf(At(i, 0));
  const bool shifts = sequence_->sequence->instructions(i).collective().kind() == v1::RING_SHIFT;
  if (!shifts && !pieces.empty() && pieces[0].value.encoded_by >= 0)
    return ExchangeCodes(i, group, index);
  if ((values_.AxesOf(group) & ~Bit(v1::CONTEXT)) == 0) return Function(i);
  Write(At(i, 1), Values::Spoiled(i, "exchanges with ranks that share no sequence with it"), i);
}

Value Flow::SumValue(const Value& value, const v1::Group& group, int index, int i) {
  if (value.exchanged >= 0) return Values::Spoiled(i, "sums parts that are not added up");
  if (value.scatter < 0) return values_.Sum(value, group, index, i);
  const auto [known, is_new] = scattered_sums_.emplace(std::pair(value.scatter, index), 0);
  if (is_new) {
    const Scatter& scatter = values_.scatter(value.scatter);
    Scatter sum = {.shard_elements = scatter.shard_elements,
                   .shards = scatter.shards,
                   .axes = scatter.axes,
                   .block = scatter.block};
    const bool mixes = (values_.AxesOf(group) & scatter.axes) != 0;
    scatter.content.ForEach(
        {0, scatter.shards * scatter.shard_elements}, [&](const ByteRange& elements, int number) {
          if (number == ByteMap::kNone) return;
          const Value summed = mixes ? Values::Spoiled(i, "sums different shards")
                                     : values_.Sum(values_[number], group, index, i);
          sum.content.Set(elements, values_.Number(summed));
        });
    known->second = values_.AddScatter(std::move(sum));
  }
  Value result = value;
  result.scatter = known->second;
  result.squared = -1;
  return result;
}

// What the other stages of the sum must bring too.
StageSum Flow::GivenToStages(int i) const {
  StageSum sum = {.instruction = i,
                  .group = sequence_->sequence->instructions(i).collective().group()};
  ForEach(At(i, 0), [&](const ByteRange&, const Value& value) {
    if (value.zero) return;
    Value given = values_.Constant();
    given.kind = value.kind;
    given.varies = value.varies;
    given.parts = value.parts;
    given.same_block = value.same_block;
    given.summed = value.summed;
    given.spoiled_by = value.spoiled_by < 0 ? -1 : 0;
    if (!sum.zero && given != sum.value) given = Values::Spoiled(i, "");
    sum.value = given;
    sum.zero = false;
  });
  return sum;
}

void Flow::AllReduce(int i, const v1::Group& group, int index) {
  if ((values_.AxesOf(group) & Bit(v1::PIPELINE)) != 0) stage_sums_.push_back(GivenToStages(i));
  for (const Piece& piece : PiecesOf(At(i, 0))) {
    content_[At(i, 0).buffer].Set(piece.bytes,
                                  values_.Number(SumValue(piece.value, group, index, i)));
  }
}

void Flow::ReduceScatter(int i, const v1::Group& group, int index) {
  const Access& in = At(i, 0);
  const Access& out = At(i, 1);
  const int64_t element_bytes = ElementBytes(i, 0);
  const AxisMask axes = values_.AxesOf(group);
  if (axes == 0) return Copy(i, 0, 1);
  Scatter scatter = {.shard_elements = out.row_bytes / element_bytes,
                     .shards = GroupSize(program_.grid(), group),
                     .axes = axes};
  for (const Piece& piece : PiecesOf(in)) {
    const Value sum =
        piece.value.scatter >= 0
            ? Values::Spoiled(i, "scatters what is scattered already")
            : Moved(values_.Sum(piece.value, group, index, i), -in.offset / element_bytes);
    scatter.content.Set({(piece.bytes.begin - in.offset) / element_bytes,
                         (piece.bytes.end - in.offset) / element_bytes},
                        values_.Number(sum));
  }
  WriteScattered(out, element_bytes, std::move(scatter), i);
}

// Activations are all alike; only the shards of gradients are told apart by place.
void Flow::WriteScattered(const Access& out, int64_t element_bytes, Scatter scatter, int i) {
  if (scatter.axes != values_.Large({v1::CONTEXT, v1::DATA_SHARD})) {
    Write(out, values_.Flat(scatter, i), i);
    return;
  }
  Value value = values_.Constant();
  value.scatter = values_.AddScatter(std::move(scatter));
  value.shift = -(out.offset / element_bytes);
  Write(out, value, i);
}

void Flow::AllGather(int i, const v1::Group& group) {
  const Access& in = At(i, 0);
  const Access& out = At(i, 1);
  const int64_t members = GroupSize(program_.grid(), group);
  const std::vector<Piece> pieces = PiecesOf(in);
  const AxisMask axes = values_.AxesOf(group);
  const bool has_shards = std::any_of(pieces.begin(), pieces.end(),
                                      [](const Piece& piece) { return piece.value.scatter >= 0; });
  if (members == 1 && !has_shards) return Copy(i, 0, 1);
  for (const Piece& piece : pieces) {
    const bool shard = piece.value.scatter >= 0 && piece.value.exchanged < 0 &&
                       Packed(piece.value) == 1 &&
                       values_.scatter(piece.value.scatter).axes == axes &&
                       values_.scatter(piece.value.scatter).block == 0;
    if (shard) {
      GatherShards(i, piece, in.row_bytes / ElementBytes(i, 0));
      continue;
    }
    const Value value =
        piece.value.scatter < 0
            ? piece.value
            : Values::Spoiled(i, "gathers shards over other ranks than those that hold them");
    const int number = values_.Number(values_.Gather(value, group, i));
    if (pieces.size() == 1) {
      content_[out.buffer].Set({out.offset, out.end()}, number);
      continue;
    }
    for (int64_t m = 0; m < members; ++m) {
      const int64_t moved = out.offset + m * in.row_bytes - in.offset;
      content_[out.buffer].Set({piece.bytes.begin + moved, piece.bytes.end + moved}, number);
    }
  }
}

// The shards of all ranks, one behind the other: the content of the region.
void Flow::GatherShards(int i, const Piece& piece, int64_t part_elements) {
  const Access& in = At(i, 0);
  const Access& out = At(i, 1);
  const int64_t element_bytes = ElementBytes(i, 0);
  const Scatter& scatter = values_.scatter(piece.value.scatter);
  const int64_t first = piece.bytes.begin / element_bytes;
  const int64_t elements = (piece.bytes.end - piece.bytes.begin) / element_bytes;
  // Elements [begin, end) of the region go to element `target` of the buffer.
  const auto move = [&](int64_t begin, int64_t end, int64_t target) {
    scatter.content.ForEach({begin, end}, [&](const ByteRange& range, int number) {
      Value value = values_.Constant();
      value.zero = value.padding = number == ByteMap::kNone;
      const int64_t moved = target - begin;
      if (!value.zero) value = Moved(values_[number], moved);
      value.rounded = value.rounded || piece.value.rounded;
      value.updated = value.updated || piece.value.updated;
      value.encoded_by = piece.value.encoded_by;
      value.encoded_as = piece.value.encoded_as;
      content_[out.buffer].Set(
          {(range.begin + moved) * element_bytes, (range.end + moved) * element_bytes},
          values_.Number(value));
    });
  };
  const int64_t out_first = out.offset / element_bytes + first - in.offset / element_bytes;
  if (first + piece.value.shift == 0 && elements == scatter.shard_elements &&
      elements == part_elements) {
    return move(0, scatter.shards * elements, out_first);
  }
  for (int64_t m = 0; m < scatter.shards; ++m) {
    const int64_t begin = m * scatter.shard_elements + first + piece.value.shift;
    move(begin, begin + elements, out_first + m * part_elements);
  }
}

absl::Status Flow::Send(int i) {
  const v1::Instruction& instruction = sequence_->sequence->instructions(i);
  Value expected = values_.Data(instruction.micro_batch());
  if (transfers_in_parts_) expected.parts = Bit(v1::TENSOR);
  const bool trained = AnyTrained(At(i, 0));
  NoteTransfer(i, &trained);
  absl::Status status;
  ForEach(At(i, 0), [&](const ByteRange& bytes, const Value& value) {
    if (!status.ok()) return;
    Value sent = values_.AsInput(value, i);
    sent.trained = false;
    if (sent == expected) return;
    const std::string what = absl::StrCat(WhereIs(i), ": sends byte ", bytes.begin, " of ",
                                          BufferText(program_, At(i, 0).buffer));
    if (sent.spoiled_by >= 0) {
      status =
          Refuse(what, ", which ", WhereIs(sent.spoiled_by), " spoiled: it ", sent.spoiled_why);
    } else if (sent.micro_batch != expected.micro_batch) {
      status = Refuse(what, " for micro-batch ", instruction.micro_batch(),
                      ", which is of micro-batch ", sent.micro_batch);
    } else {
      status = Refuse(
          what,
          ", which is not complete on every rank: a reduction before it is missing or double");
    }
  });
  return status;
}

void Flow::Receive(int i) {
  Value value = values_.Data(sequence_->sequence->instructions(i).micro_batch());
  if (transfers_in_parts_) value.parts = Bit(v1::TENSOR);
  value.trained = NoteTransfer(i, nullptr);
  Write(At(i, 0), value, i);
}

void Flow::Input(int i) {
  const v1::Instruction& instruction = sequence_->sequence->instructions(i);
  Value value = values_.Constant();
  if (instruction.input().kind() == v1::LOAD_BATCH) value = values_.Data(instruction.micro_batch());
  const bool schedule = instruction.input().kind() == v1::LOAD_SCHEDULE;
  const bool batch = instruction.input().kind() == v1::LOAD_BATCH;
  if (batch && documents_ && instruction.operands_size() <= kStartsOfBatch)
    value = Values::Spoiled(i, "brings no starts of documents, which other batches do");
  for (const Access& access : sequence_->instructions[i].accesses) {
    if (schedule) value.kind = access.operand == 0 ? Value::kSchedule : Value::kStep;
    if (batch && access.operand == kPlacesOfBatch) value.kind = Value::kPlaces;
    if (batch && access.operand == kStartsOfBatch) value.kind = Value::kStarts;
    Write(access, value, i);
  }
}

}  // namespace terrace::check
