// What the checker knows about the content of bytes: not their numbers, but on which ranks they
// differ, which micro-batches are in them, and whether they are a sum, a part or a copy. Internal
// to proto/check.
//
// The three questions behind it are those that can go wrong without a trace: was every gradient
// summed over exactly the ranks whose data it lacks (a sum over ranks that hold the same is a
// multiplication, a missing one makes copies of a weight drift apart), does it hold every
// micro-batch equally often, and does each rank hold the part that belongs to it.
//
// Of weights, moments and gradients it also knows the place: of which bytes of the state they are a
// copy or the gradient, wherever they were moved to.
//
// Borrows the program's grid. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/op.h"
#include "proto/check/value/links.h"
#include "proto/check/value/marks.h"
#include "proto/check/value/ranges.h"
#include "proto/program/grid.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

using AxisMask = uint32_t;
constexpr AxisMask Bit(v1::Axis axis) { return 1u << axis; }
std::string AxesText(AxisMask axes);  // "CONTEXT, DATA_SHARD"; "no axis"

inline constexpr int kNoMicroBatch = -1;
inline constexpr int kSeveralMicroBatches = -2;

struct Value {
  enum Kind : uint8_t {
    kNumbers,
    kSquares,      // sums of squares of gradients: which ones is in Squares
    kScale,        // what GRAD_SCALE made
    kSchedule,     // what LOAD_SCHEDULE brought
    kStep,         // what it brought as the number of the step
    kPlaces,       // what LOAD_BATCH brought as the places of tokens
    kStarts,       // what it brought as the starts of their documents
    kLosses,       // of tokens, one by one
    kPairWeights,  // what preference_loss made: weights of tokens,
    kPairLoss,     // and sums over pairs
  };
  Kind kind = kNumbers;
  bool zero = false;     // nothing but zeros: fits to everything
  bool padding = false;  // of a gathered region, between its tensors: no operation has use for it
  bool foreign = false;  // zeros to which other stages added theirs
  // Of CONTEXT, DATA_SHARD and DATA_REPLICA: ranks that differ there saw different data.
  AxisMask varies = 0;
  // Ranks that differ there hold different parts of one thing.
  AxisMask parts = 0;
  // Blocks of so many tensor-parallel ranks hold the same; 1: each another, all of them: no
  // difference.
  uint32_t same_block = 1;
  int pipeline_group = -1;  // summed over the stages of this group
  // Blocks of so many ranks along DATA_SHARD have summed it, and it still varies over that axis.
  uint32_t shard_block = 1;
  // What was made from which micro-batch. A contribution is one operation that added something;
  // `marks` are the micro-batches of all contributions.
  int micro_batch = kNoMicroBatch;
  uint64_t contributions = 0;
  Marks marks = 0;
  // Instruction that took its squared norm; of kScale: that made it.
  int squared = -1;
  // Of kSquares: index of the list, and the axes that it was summed over.
  int squares = -1;
  AxisMask summed = 0;
  // Not -1: this rank's shard of scattered content; see Scatter. Element e of the buffer is element
  // e + shift of the shard. The fields above then say nothing, but for `squared`.
  int scatter = -1;
  int64_t shift = 0;
  // What it has to do with the state of the manifest. Element e of the buffer is, or is the
  // gradient of, element e + distance of `origin`: the buffer that holds the state or, in scattered
  // content, the region that its shards make; of kGradient a number of Links (links.h).
  enum Role : uint8_t { kNothing, kState, kGradient };
  Role role = kNothing;
  bool rounded = false;  // another element type was in between
  bool updated = false;  // the optimizer of this step has changed it
  bool trained = false;  // of pairs: it depends on weights that are trained
  int origin = -1;
  int64_t distance = 0;
  // Not -1: codes, or their scales, that this instruction has made, in this format and blocks of so
  // many elements.
  int encoded_by = -1;
  kernels::BlockAttrs encoded_as = {};
  // Not -1: one part from each member of this group, which its own rank keeps the sum of. With
  // `scatter` not -1 these are the parts of gradients, which are not added up yet.
  int exchanged = -1;
  // Not -1: the instruction that made nonsense of it, and which; nobody may rely on it any more.
  int spoiled_by = -1;
  std::string spoiled_why;

  bool operator==(const Value&) const = default;
};

struct ValueHash {
  size_t operator()(const Value& value) const;
};

// A region of shards * shard_elements elements of which each rank holds one shard: its content by
// element, as values (without scatter) in a table.
struct Scatter {
  int64_t shard_elements = 0;
  int64_t shards = 1;
  AxisMask axes = 0;
  // Not 0: blocks of so many ranks along DATA_SHARD hold a region each.
  uint32_t block = 0;
  ByteMap content;  // by element of the region
};

// What one squared norm counted: gradients that `same_block` tensor-parallel ranks hold alike, and
// of which ranks along `parts` hold each another part.
struct SquareTerm {
  int instruction = 0;
  uint32_t same_block = 1;
  AxisMask parts = 0;
  int pipeline_group = -1;
  float scale = 1;
};

// Gives equal values one number, so that maps of bytes hold numbers. Knows the grid, and with it
// what happens to a value that is combined or summed.
class Values {
 public:
  explicit Values(const v1::Grid& grid);

  int Number(const Value& value);
  const Value& operator[](int number) const { return *by_number_[number]; }

  int AddScatter(Scatter scatter);
  const Scatter& scatter(int index) const { return scatters_[index]; }
  int AddSquares(std::vector<SquareTerm> terms);
  const std::vector<SquareTerm>& squares(int index) const { return squares_[index]; }

  Links& links() { return links_; }

  // The axes of the group along which it has more than one member.
  AxisMask AxesOf(const v1::Group& group) const;
  // Of the given axes those of more than one rank.
  AxisMask Large(std::initializer_list<v1::Axis> axes) const;
  uint32_t tensor() const { return tensor_; }

  // The same on all ranks, from no micro-batch.
  Value Constant() const;
  // What a rank loads, or receives from another stage, of one micro-batch.
  Value Data(int micro_batch) const;

  // What a rank has of scattered content that is of one kind.
  Value Flat(const Scatter& scatter, int instruction) const;
  // The value as an input of a computation. Activations differ between ranks with different data,
  // weights do not.
  Value AsInput(const Value& value, int instruction) const;
  // A function of both inputs: it differs where one of them does.
  Value Join(const Value& a, const Value& b, int instruction) const;
  // a + b, both contributions to one sum: they must lack the same.
  Value Add(const Value& a, const Value& b, int instruction);
  // The sum over the members of a group. `group` is its index.
  Value Sum(const Value& value, const v1::Group& group, int group_index, int instruction) const;
  // Every member has what all members had.
  Value Gather(const Value& value, const v1::Group& group, int instruction) const;

  static Value Spoiled(int instruction, std::string why);
  // The same content, but nobody knows of which place.
  static Value WithoutPlace(Value value);

 private:
  const v1::Grid& grid_;  // borrowed from the program
  const uint32_t tensor_;
  std::unordered_map<Value, int, ValueHash> numbers_;
  std::vector<const Value*> by_number_;  // keys of numbers_
  std::deque<Scatter> scatters_;
  std::deque<std::vector<SquareTerm>> squares_;
  Links links_;
};

}  // namespace terrace::check
