// Between the op table's C++ types (kernels/op.h) and their protobuf form. Kernels know no
// protobuf, programs carry nothing else; this is the one place where the two meet.
//
// Decoding validates: an unknown op, attributes of another op, a dtype or shape outside the table's
// limits are INVALID_ARGUMENT, with the value and the rule. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "kernels/op.h"
#include "proto/program/grid.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Sets compute.op and its attrs (none for NoAttrs).
void EncodeOp(kernels::Op op, const kernels::OpAttrs& attrs, v1::ComputeOp* compute);

struct DecodedOp {
  kernels::Op op;
  kernels::OpAttrs attrs;
};
absl::StatusOr<DecodedOp> DecodeOp(const v1::ComputeOp& compute);

// Fills in what differs between the ranks of a stage and is in no program: the rank's own shard of
// the vocabulary, its own share of the tokens. Decoded ops are those of tensor and context index 0
// before.
void ResolveRank(const Coordinates& rank, kernels::OpAttrs* attrs);

v1::OptimizerRule EncodeRule(kernels::OptimizerRule rule);
// AdamW where none is said; one that no table knows stays what it is.
kernels::OptimizerRule DecodeRule(v1::OptimizerRule rule);

v1::DType EncodeDType(kernels::DType dtype);
v1::BlockFormat EncodeBlockFormat(kernels::Format format);
// Null for one that the table of formats does not have, and where none is said.
const kernels::FormatRow* DecodeBlockFormat(v1::BlockFormat format);
// An absent operand (ACCESS_UNSPECIFIED) decodes to an absent shape.
absl::StatusOr<kernels::TensorShape> DecodeShape(const v1::Operand& operand);

}  // namespace terrace
