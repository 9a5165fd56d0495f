// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/builder.h"

#include "absl/strings/str_cat.h"

namespace terrace::compiler {

Slice Builder::NewValue(const std::string& name, v1::BufferClass cls, kernels::DType dtype,
                        const Dims& dims) {
  std::string full;
  if (micro_batch != kNone) absl::StrAppend(&full, "mb", micro_batch, ".");
  if (layer != kNone) absl::StrAppend(&full, "layer", layer, ".");
  return graph_->Whole(graph_->Add({.name = absl::StrCat(full, name),
                                    .cls = cls,
                                    .dtype = dtype,
                                    .shape = dims,
                                    .sequence = sequence_}));
}

Slice Builder::NewGradientOf(const Value& value, v1::BufferClass cls) {
  return graph_->Whole(graph_->Add({.name = absl::StrCat("d.", value.name),
                                    .cls = cls,
                                    .dtype = value.dtype,
                                    .shape = value.shape,
                                    .sequence = sequence_}));
}

void Builder::Compute(kernels::Op op, kernels::OpAttrs attrs, std::vector<Slice> operands,
                      std::string text) {
  Append(compiler::Compute{op, std::move(attrs)}, std::move(operands), std::move(text));
}

void Builder::AllReduce(int group, Slice operand, std::string text) {
  Append(Collective{v1::ALL_REDUCE, group}, {operand}, std::move(text));
}

void Builder::Input(v1::InputKind kind, std::vector<Slice> operands, std::string text) {
  Append(compiler::Input{kind}, std::move(operands), std::move(text));
}

void Builder::Output(v1::OutputKind kind, Slice operand, std::string text) {
  Append(compiler::Output{kind}, {operand}, std::move(text));
}

}  // namespace terrace::compiler
