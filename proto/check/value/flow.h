// Follows what the checker knows about content (value.h) through the instructions of a sequence:
// which value each byte of each buffer has after each of them. Internal to proto/check.
//
// Nothing is refused here but what is sent to another stage: an instruction that makes nonsense of
// a value spoils it, and who relies on it (train.h) refuses it with the name of that instruction.
// Activations need no such rules of their own; whatever is wrong with them reaches a gradient.
//
// Strided operands are seen as everything between their first and their last byte: they are columns
// of fused activations, which are all alike.
//
// Borrows the program and the values. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/check/instruction/instructions.h"
#include "proto/check/value/links.h"
#include "proto/check/value/ranges.h"
#include "proto/check/value/value.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// Operands of LOAD_BATCH (program.proto).
inline constexpr int kPlacesOfBatch = 2, kStartsOfBatch = 3;

// What one ALL_REDUCE over stages was given by this one. All zeros fit to everything.
struct StageSum {
  int instruction = 0;
  uint32_t group = 0;
  bool zero = true;
  Value value;  // of what is not zero, without micro-batches
};

// Of transfers of forward passes of pairs, by group, sending and receiving stage and micro-batch:
// whether what is sent, or what the receiver takes it for, depends on trained weights.
using PairTransfers =
    std::map<std::tuple<uint32_t, uint32_t, uint32_t, int32_t>, std::vector<bool>>;

class Flow {
 public:
  // Persistent buffers hold the state. `transfers_in_parts`: what stages send each other is split
  // over the axis TENSOR (sequence parallelism); otherwise it is the same on all its ranks.
  Flow(const v1::Program& program, bool transfers_in_parts, Values* values);

  // Starts a sequence: STEP buffers hold nothing, persistent ones what they hold.
  void Begin(const CheckedSequence* sequence);
  // Instruction i, after all before it.
  absl::Status Step(int i);

  using Visit = absl::FunctionRef<void(const ByteRange& bytes, const Value& value)>;
  // The pieces of an operand; bytes that hold nothing are left out.
  void ForEach(const Access& access, Visit visit) const;

  const ByteMap& content(uint32_t buffer) const { return content_[buffer]; }
  // Gives bytes what instructions that need not be followed have left there.
  void Set(uint32_t buffer, const ByteRange& bytes, int number) {
    content_[buffer].Set(bytes, number);
  }
  Values& values() const { return values_; }
  // Of the type that instruction i gives its operand.
  int64_t ElementBytes(int i, int operand) const;
  const std::vector<StageSum>& stage_sums() const { return stage_sums_; }
  const PairTransfers& sent() const { return sent_; }
  const PairTransfers& received() const { return received_; }

 private:
  struct Piece {
    ByteRange bytes;
    const Value& value;  // of values_, which keeps all
  };
  std::vector<Piece> PiecesOf(const Access& access) const;
  std::string WhereIs(int i) const;
  const Access& At(int i, int operand) const;

  void FillFromManifest();
  Value OfState(uint32_t buffer) const;
  void Write(const Access& access, const Value& value, int i);
  // The bytes of `to` get what those of `from` have, element by element. `packed`: how many
  // elements one of `from` has.
  void Copy(int i, int from, int to, int64_t packed = 1);
  // Elements in one of a buffer: of codes that are smaller than a byte several.
  static int64_t Packed(const Value& value);
  static Value Moved(Value value, int64_t moved);

  absl::Status Apply(int i);
  void Compute(int i);
  void Function(int i);  // any op that is none of the next
  Value WithoutOtherTokens(int i, Value result) const;
  void WeakenToColumns(const Value& columns, Value* added) const;
  void Update(int i);  // the optimizer
  void Encode(int i);
  void Decode(int i);
  void DecodeState(int i);
  void SumCodes(int i);
  void AddInto(int i);
  void SumPieces(int i);
  void SquaredNorm(int i);
  void SumSquares(int i);
  Value AddScattered(const Value& x, const Value& y, int i);

  // flow_pairs.cc
  bool AllOf(const Access& access, Value::Kind kind) const;
  bool AnyTrained(const Access& access) const;
  std::string PairProblem(int i) const;
  Value OfPairs(int i, const Access& access, Value made) const;
  bool NoteTransfer(int i, const bool* trained);

  // flow_links.cc
  StatePlace StateIn(const Access& access, int64_t element_bytes) const;
  bool MixesState(const Access& access, int64_t element_bytes) const;
  Content ContentOf(const Access& access) const;
  void NoteUses(int i);
  Links::Product ProductIn(int i, const Access& access) const;
  Value AsGradient(int i, const Access& access, const Value* before, Value made);

  absl::Status Collective(int i);
  StageSum GivenToStages(int i) const;
  void AllReduce(int i, const v1::Group& group, int index);
  void ReduceScatter(int i, const v1::Group& group, int index);
  void WriteScattered(const Access& out, int64_t element_bytes, Scatter scatter, int i);
  void AllGather(int i, const v1::Group& group);
  void GatherShards(int i, const Piece& piece, int64_t part_elements);
  void Exchange(int i, const v1::Group& group, int index);
  void ExchangeCodes(int i, const v1::Group& group, int index);
  Scatter PartsOfCodes(const Access& in, const v1::Group& group);
  absl::StatusOr<Scatter> PartsOfSums(const Access& in, const v1::Group& group);
  Value SumValue(const Value& value, const v1::Group& group, int index, int i);

  absl::Status Send(int i);
  void Receive(int i);
  void Input(int i);

  const v1::Program& program_;
  const bool transfers_in_parts_;
  const bool packs_;  // batches hold several documents a sequence
  const bool pairs_;  // rules.pairs
  Values& values_;
  const CheckedSequence* sequence_ = nullptr;
  bool documents_ = false;        // there are several in those of sequence_
  std::vector<ByteMap> content_;  // numbers of values, by buffer
  std::vector<int> versions_;     // writes so far, by buffer
  std::vector<StageSum> stage_sums_;
  PairTransfers sent_, received_;
  std::map<std::pair<int, int>, int> scattered_sums_;       // (scatter, group) -> scatter
  std::map<std::pair<int, int>, int> scattered_additions_;  // (scatter, scatter) -> scatter
};

}  // namespace terrace::check
