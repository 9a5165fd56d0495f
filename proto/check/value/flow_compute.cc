// What computation does to content: beside Flow's own file.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "kernels/op.h"
#include "proto/check/value/flow.h"

namespace terrace::check {
namespace {

using kernels::Op;

// Ops whose UPDATE operand is changed in place; that of all others is added to.
bool ChangesInPlace(Op op) {
  return op == Op::kRope || op == Op::kCrossEntropyGrad || op == Op::kAttentionBlock ||
         op == Op::kScale;
}

// Operands that depend on the rank's shard of the vocabulary or of columns (ResolveRank in
// proto/program/op_codec.h).
bool DependsOnTensorRank(const DecodedOp& op, int operand, const Value& result) {
  if (const auto* embedding = std::get_if<kernels::EmbeddingAttrs>(&op.attrs)) {
    const bool positions = op.op == Op::kEmbeddingGrad && operand == 3;
    return embedding->shard_rows > 0 && !positions;
  }
  if (const auto* dropout = std::get_if<kernels::DropoutAttrs>(&op.attrs)) {
    // Rows that are split are known as parts of the sequence; others would be equal on all ranks.
    return dropout->column_shards > 1 ||
           (dropout->row_shards > 1 && (result.parts & Bit(v1::TENSOR)) == 0);
  }
  return op.op == Op::kCrossEntropyRows || op.op == Op::kCrossEntropyGrad;
}

}  // namespace

void Flow::Compute(int i) {
  const DecodedOp& op = *sequence_->instructions[i].op;
  switch (op.op) {
    case Op::kFill: {
      Value value = values_.Constant();
      value.zero = std::get<kernels::FillAttrs>(op.attrs).value == 0;
      return Write(At(i, 0), value, i);
    }
    case Op::kCast:
      return Copy(i, 0, 1);
    case Op::kEncodeBlocks:
      return Encode(i);
    case Op::kDecodeBlocks:
      return Decode(i);
    case Op::kSumBlocks:
      return SumCodes(i);
    case Op::kAdd:
      return AddInto(i);
    case Op::kSumStats:
      return SumPieces(i);
    case Op::kSquaredNorm:
      return SquaredNorm(i);
    case Op::kSum:
      return SumSquares(i);
    case Op::kGradScale: {
      Value value = values_.Constant();
      value.kind = Value::kScale;
      value.squared = i;
      return Write(At(i, 2), value, i);
    }
    case Op::kUpdate:
    case Op::kUpdateStochastic:
    case Op::kUpdateInt8:
    case Op::kUpdateMatrix:
    case Op::kUpdateFactored:
      return Update(i);
    default:
      return Function(i);
  }
}

// Columns are known only by what they have in common with the columns beside them (Write). Where
// each tensor-parallel rank has its own queries, the keys beside them count as each rank's own as
// well, although blocks of ranks share them. What is added to the keys may be shared by a block.
void Flow::WeakenToColumns(const Value& columns, Value* added) const {
  const bool numbers = columns.kind == Value::kNumbers && columns.role != Value::kGradient &&
                       added->role != Value::kGradient;
  const bool split = added->same_block < values_.tensor();
  if (numbers && split && added->same_block % columns.same_block == 0)
    added->same_block = columns.same_block;
}

// Places and starts are those that LOAD_BATCH brought, and where sequences hold several documents
// no op forgets it: not attention, and not the positions of an embedding.
Value Flow::WithoutOtherTokens(int i, Value result) const {
  const CheckedInstruction& instruction = sequence_->instructions[i];
  if (result.spoiled_by >= 0 || !instruction.op.has_value()) return result;
  const Op op = instruction.op->op;
  for (int operand = 0; operand < kernels::OperandCount(op); ++operand) {
    const std::string_view name = kernels::OperandName(op, operand);
    const bool starts = name == "starts";
    if (!starts && name != "places") continue;
    const Access* const access = instruction.Find(operand);
    if (access == nullptr) {
      const bool embeds = op == Op::kEmbedding || op == Op::kEmbeddingGrad;
      const int positions = op == Op::kEmbedding ? 2 : 3;
      if (!starts || !documents_ || (embeds && instruction.Find(positions) == nullptr)) continue;
      return Values::Spoiled(i, "takes several documents for one");
    }
    bool fits = true;
    ForEach(*access, [&](const ByteRange&, const Value& value) {
      fits = fits && value.kind == (starts ? Value::kStarts : Value::kPlaces);
    });
    if (!fits)
      return Values::Spoiled(i, absl::StrCat("takes something else for LOAD_BATCH's ", Absl(name)));
  }
  return result;
}

void Flow::Function(int i) {
  const CheckedInstruction& instruction = sequence_->instructions[i];
  const bool in_place = instruction.op.has_value() && ChangesInPlace(instruction.op->op);
  Value result = values_.Constant();
  NoteUses(i);
  for (const Access& access : instruction.accesses) {
    if (!access.reads || access.operand == kWorkspaceOperand || (access.writes && !in_place))
      continue;
    if (MixesState(access, ElementBytes(i, access.operand))) {
      result = Values::Spoiled(i, "computes with pieces of state that do not belong together");
    }
    ForEach(access, [&](const ByteRange&, const Value& value) {
      const Value input = value.padding ? Values::Spoiled(i, "reads beyond the edge of a tensor")
                                        : values_.AsInput(value, i);
      result = values_.Join(result, input, i);
    });
  }
  result = WithoutOtherTokens(i, std::move(result));
  if (instruction.op.has_value() && result.spoiled_by < 0) {
    std::string problem = PairProblem(i);
    if (!problem.empty()) result = Values::Spoiled(i, std::move(problem));
  }
  for (const Access& access : instruction.accesses) {
    if (!access.writes || access.operand == kWorkspaceOperand) continue;
    Value written = OfPairs(i, access, result);
    if (result.spoiled_by < 0 && instruction.op.has_value() &&
        DependsOnTensorRank(*instruction.op, access.operand, result)) {
      written.same_block = 1;
    }
    if (!access.reads || in_place) {
      Write(access, AsGradient(i, access, nullptr, written), i);
      continue;
    }
    const std::vector<Piece> pieces = PiecesOf(access);
    if (pieces.empty()) continue;
    const Value added = AsGradient(i, access, &pieces[0].value, written);
    for (const Piece& piece : pieces) {
      Value more = added;
      if (access.rows > 1) WeakenToColumns(piece.value, &more);
      content_[access.buffer].Set(piece.bytes, values_.Number(values_.Add(piece.value, more, i)));
    }
  }
}

// Weights and moments keep their places; that they belong together is asked in weights.h.
void Flow::Update(int i) {
  for (const Access& access : sequence_->instructions[i].accesses) {
    if (!access.writes || access.operand == kWorkspaceOperand) continue;
    for (const Piece& piece : PiecesOf(access)) {
      Value value = piece.value;
      value.updated = true;
      content_[access.buffer].Set(piece.bytes, values_.Number(value));
    }
  }
}

// Codes are what they were made of, in fewer bits, those of part p of a run behind those of part p
// of the run before. Scales differ on the ranks on which that differs.
void Flow::Encode(int i) {
  kernels::BlockAttrs attrs = std::get<kernels::BlockAttrs>(sequence_->instructions[i].op->attrs);
  const int64_t runs = std::exchange(attrs.runs, 1), parts = std::exchange(attrs.parts, 1);
  const Access& in = At(i, 0);
  const Access& out = At(i, 1);
  Value scales = values_.Constant();
  for (const Piece& piece : PiecesOf(in)) {
    Value made = Values::WithoutPlace(piece.value);
    if (made.scatter >= 0) {
      made = values_.Constant();
      made.parts = values_.scatter(piece.value.scatter).axes;
    }
    scales = values_.Join(scales, made, i);
  }
  const int64_t element_bytes = ElementBytes(i, 0), packed = kernels::RowOf(attrs.format).packed;
  const int64_t part = in.row_bytes / element_bytes / (runs * parts);
  const ByteMap source = content_[in.buffer];
  ByteMap& content = content_[out.buffer];
  content.Set({out.offset, out.end()}, ByteMap::kNone);
  const auto encode = [&](int64_t run, int64_t p) {
    const int64_t begin = in.offset / element_bytes + (run * parts + p) * part;
    const int64_t moved = out.offset * packed + (p * runs + run) * part - begin;
    const ByteRange elements = {begin * element_bytes, (begin + part) * element_bytes};
    source.ForEach(elements, [&](const ByteRange& bytes, int number) {
      if (number == ByteMap::kNone) return;
      const int64_t first = bytes.begin / element_bytes + moved;
      const int64_t end = bytes.end / element_bytes + moved;
      Value codes = Moved(values_[number], moved);
      codes.rounded = codes.rounded || codes.role != Value::kNothing;
      if (first % packed != 0 || end % packed != 0)
        codes = Values::Spoiled(i, "puts codes of two kinds into one byte");
      codes.encoded_by = i;
      codes.encoded_as = attrs;
      content.Set({first / packed, (end + packed - 1) / packed}, values_.Number(codes));
    });
  };
  for (int64_t p = 0; p < parts; ++p) {
    for (int64_t run = 0; run < runs; ++run) encode(run, p);
  }
  scales.encoded_by = i;
  scales.encoded_as = attrs;
  Write(At(i, 2), scales, i);
}

// Codes go with the scales that were made beside them; where they are weights that were gathered,
// these were as well.
void Flow::Decode(int i) {
  const std::vector<Piece> codes = PiecesOf(At(i, 0));
  const bool state = std::any_of(codes.begin(), codes.end(), [](const Piece& piece) {
    return piece.value.role == Value::kState && piece.value.encoded_by < 0;
  });
  if (state) return DecodeState(i);
  const auto& attrs = std::get<kernels::BlockAttrs>(sequence_->instructions[i].op->attrs);
  const std::vector<Piece> scales = PiecesOf(At(i, 1));
  Copy(i, 0, 2, kernels::RowOf(attrs.format).packed);
  for (const Piece& piece : PiecesOf(At(i, 2))) {
    Value value = piece.value;
    const auto fits = [&](const Piece& scale) {
      return scale.value.encoded_by == value.encoded_by &&
             scale.value.micro_batch == value.micro_batch && scale.value.varies == value.varies &&
             (value.role != Value::kState || scale.value.parts == value.parts);
    };
    const bool known = value.padding || value.spoiled_by >= 0;
    if (value.exchanged >= 0) {
      value = Values::Spoiled(i, "decodes parts of several ranks as one");
    } else if (!known &&
               (value.encoded_by < 0 || !std::all_of(scales.begin(), scales.end(), fits))) {
      value = Values::Spoiled(i, "decodes codes with scales that were not made with them");
    } else if (!known && value.encoded_as != attrs) {
      value = Values::Spoiled(i, "decodes codes as those of another format");
    }
    value.encoded_by = -1;
    value.encoded_as = {};
    content_[At(i, 2).buffer].Set(piece.bytes, values_.Number(value));
  }
}

// Weights that rest as codes are theirs as rounded ones are: of element e is byte e over how many a
// byte has. That the scales belong to them is asked in decoded_state.h.
void Flow::DecodeState(int i) {
  const auto& attrs = std::get<kernels::BlockAttrs>(sequence_->instructions[i].op->attrs);
  const int64_t packed = kernels::RowOf(attrs.format).packed, bytes = ElementBytes(i, 2);
  const Access& in = At(i, 0);
  const Access& out = At(i, 2);
  const std::vector<Piece> codes = PiecesOf(in);
  content_[out.buffer].Set({out.offset, out.end()}, ByteMap::kNone);
  for (const Piece& piece : codes) {
    Value value = piece.value;
    if (value.scatter >= 0) value = Values::Spoiled(i, "decodes a shard alone");
    if (value.role == Value::kState) {
      value.distance = (in.offset + value.distance) * packed - out.offset / bytes;
      value.rounded = true;
    }
    const auto to = [&](int64_t byte) { return out.offset + (byte - in.offset) * packed * bytes; };
    content_[out.buffer].Set({to(piece.bytes.begin), to(piece.bytes.end)}, values_.Number(value));
  }
}

// What REDUCE_SCATTER makes of numbers: this rank's part of the sum over the members.
void Flow::SumCodes(int i) {
  const Access& in = At(i, 0);
  const Access& out = At(i, 2);
  const auto& attrs = std::get<kernels::BlockAttrs>(sequence_->instructions[i].op->attrs);
  const std::vector<Piece> codes = PiecesOf(in), scales = PiecesOf(At(i, 1));
  const auto refuse = [&](const char* why) { Write(out, Values::Spoiled(i, why), i); };
  for (const auto* pieces : {&codes, &scales}) {
    for (const Piece& piece : *pieces) {
      if (piece.value.spoiled_by >= 0) return Write(out, piece.value, i);
    }
  }
  const Value* const value = codes.empty() ? nullptr : &codes[0].value;
  if (value == nullptr || codes.size() > 1 || value->exchanged < 0 || value->scatter < 0)
    return refuse("sums what is no exchanged codes of gradients");
  const Scatter& parts = values_.scatter(value->scatter);
  const v1::Group& group = program_.groups(value->exchanged);
  const auto& shape = sequence_->sequence->instructions(i).operands(0).shape();
  const int64_t packed = Packed(*value);
  if (shape[0] != GroupSize(program_.grid(), group) || shape[1] * packed != parts.shard_elements ||
      value->shift != -in.offset * packed) {
    return refuse("sums codes in other parts than were exchanged");
  }
  if (parts.shard_elements % attrs.block != 0)
    return refuse("sums codes in blocks that lie in two parts");
  const bool fit = std::all_of(scales.begin(), scales.end(), [&](const Piece& scale) {
    return scale.value.exchanged == value->exchanged && scale.value.scatter < 0 &&
           scale.value.encoded_by == value->encoded_by;
  });
  if (scales.empty() || !fit) return refuse("sums codes with scales that were not made with them");
  if (value->encoded_as != attrs) return refuse("sums codes as those of another format");
  Scatter sum = {.shard_elements = parts.shard_elements,
                 .shards = parts.shards,
                 .axes = parts.axes,
                 .block = parts.block};
  parts.content.ForEach({0, parts.shards * parts.shard_elements},
                        [&](const ByteRange& elements, int number) {
                          if (number == ByteMap::kNone) return;
                          Value of_all = values_.Sum(values_[number], group, value->exchanged, i);
                          of_all.encoded_as = {};
                          sum.content.Set(elements, values_.Number(of_all));
                        });
  WriteScattered(out, ElementBytes(i, 2), std::move(sum), i);
}

void Flow::AddInto(int i) {
  const Access& x = At(i, 0);
  const Access& y = At(i, 1);
  if (x.rows > 1 || y.rows > 1) return Function(i);
  const int64_t x_bytes = ElementBytes(i, 0), y_bytes = ElementBytes(i, 1);
  const int64_t moved = y.offset / y_bytes - x.offset / x_bytes;
  for (const Piece& added : PiecesOf(x)) {
    const auto to_y = [&](int64_t byte) {
      return y.offset + (byte - x.offset) / x_bytes * y_bytes;
    };
    std::vector<std::pair<ByteRange, Value>> sums;
    content_[y.buffer].ForEach(
        {to_y(added.bytes.begin), to_y(added.bytes.end)}, [&](const ByteRange& bytes, int number) {
          if (number == ByteMap::kNone) return;
          sums.emplace_back(bytes, AddScattered(Moved(added.value, moved), values_[number], i));
        });
    for (const auto& [bytes, value] : sums) {
      content_[y.buffer].Set(bytes, values_.Number(value));
    }
  }
}

// x + y, x as it would be in y's place.
Value Flow::AddScattered(const Value& x, const Value& y, int i) {
  if (x.exchanged >= 0 || y.exchanged >= 0)
    return Values::Spoiled(i, "adds to parts that are not added up");
  if (x.scatter < 0 && y.scatter < 0) return values_.Add(y, x, i);
  if (y.spoiled_by >= 0) return y;
  if (x.spoiled_by >= 0 || (y.scatter < 0 && !y.zero)) {
    return x.spoiled_by >= 0 ? x : Values::Spoiled(i, "adds a shard to what is no shard");
  }
  if (x.zero) return y;
  if (x.scatter < 0) return Values::Spoiled(i, "adds what is no shard to a shard");
  Value sum = x;
  sum.squared = -1;
  if (y.scatter < 0) return sum;
  const Scatter& a = values_.scatter(x.scatter);
  const Scatter& b = values_.scatter(y.scatter);
  if (a.shard_elements != b.shard_elements || a.axes != b.axes || a.block != b.block ||
      x.shift != y.shift) {
    return Values::Spoiled(i, "adds shards of different places");
  }
  const auto [known, is_new] = scattered_additions_.emplace(std::pair(x.scatter, y.scatter), 0);
  if (is_new) {
    Scatter added = {
        .shard_elements = a.shard_elements, .shards = a.shards, .axes = a.axes, .block = a.block};
    const ByteRange all = {0, a.shards * a.shard_elements};
    a.content.ForEach(all, [&](const ByteRange& elements, int number) {
      b.content.ForEach(elements, [&](const ByteRange& piece, int other) {
        if (number == ByteMap::kNone && other == ByteMap::kNone) return;
        const int result = number == ByteMap::kNone ? other
                           : other == ByteMap::kNone
                               ? number
                               : values_.Number(values_.Add(values_[other], values_[number], i));
        added.content.Set(piece, result);
      });
    });
    known->second = values_.AddScatter(std::move(added));
  }
  sum.scatter = known->second;
  return sum;
}

// total = sum of the pieces: each is a contribution of its own.
void Flow::SumPieces(int i) {
  Value total = values_.Constant();
  total.zero = true;
  ForEach(At(i, 0),
          [&](const ByteRange&, const Value& value) { total = values_.Add(total, value, i); });
  Write(At(i, 1), total, i);
}

void Flow::SquaredNorm(int i) {
  const float scale = std::get<kernels::ScaleAttrs>(sequence_->instructions[i].op->attrs).scale;
  const Access& x = At(i, 0);
  std::vector<SquareTerm> terms;
  const auto count = [&](const Value& value, AxisMask shards) {
    const SquareTerm term = {.instruction = i,
                             .same_block = value.same_block,
                             .parts = value.parts | shards,
                             .pipeline_group = value.pipeline_group,
                             .scale = scale};
    const bool known = std::any_of(terms.begin(), terms.end(), [&](const SquareTerm& other) {
      return other.same_block == term.same_block && other.parts == term.parts &&
             other.pipeline_group == term.pipeline_group;
    });
    // What other stages added to zeros is padding here, or the optimizer refuses it.
    if (!known && !value.zero && !value.foreign) terms.push_back(term);
  };
  for (const Piece& piece : PiecesOf(x)) {
    if (piece.value.exchanged >= 0)
      return Write(At(i, 1), Values::Spoiled(i, "squares parts that are not added up"), i);
    if (piece.value.scatter >= 0) {
      const Scatter& scatter = values_.scatter(piece.value.scatter);
      scatter.content.ForEach({0, scatter.shards * scatter.shard_elements},
                              [&](const ByteRange&, int number) {
                                if (number != ByteMap::kNone) count(values_[number], scatter.axes);
                              });
    } else {
      count(piece.value, 0);
    }
    if (piece.value.spoiled_by >= 0) continue;
    Value value = piece.value;
    value.squared = i;
    content_[x.buffer].Set(piece.bytes, values_.Number(value));
  }
  Value squares = values_.Constant();
  squares.kind = Value::kSquares;
  squares.squares = values_.AddSquares(std::move(terms));
  Write(At(i, 1), squares, i);
}

void Flow::SumSquares(int i) {
  Value total;
  bool first = true;
  std::vector<SquareTerm> terms;
  for (const Piece& piece : PiecesOf(At(i, 0))) {
    if (piece.value.zero) continue;
    if (piece.value.kind != Value::kSquares) return Function(i);
    if (!first && piece.value.summed != total.summed) {
      return Write(At(i, 1), Values::Spoiled(i, "adds squares summed over different axes"), i);
    }
    first = false;
    total = piece.value;
    const std::vector<SquareTerm>& more = values_.squares(piece.value.squares);
    terms.insert(terms.end(), more.begin(), more.end());
  }
  if (first) {
    total = values_.Constant();
    total.kind = Value::kSquares;
    total.squares = values_.AddSquares({});
    total.zero = true;
    return Write(At(i, 1), total, i);
  }
  total.squares = values_.AddSquares(std::move(terms));
  Write(At(i, 1), total, i);
}

}  // namespace terrace::check
