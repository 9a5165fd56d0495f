// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/graph/builder.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace terrace::compiler {

std::string ReplaceMicroBatch(const std::string& name, const std::string& by) {
  const size_t at = name.find("mb");
  if (at == std::string::npos || (at > 0 && name[at - 1] != '.')) return name;
  size_t end = at + 2;
  while (end < name.size() && absl::ascii_isdigit(static_cast<unsigned char>(name[end]))) ++end;
  if (end == at + 2 || end == name.size() || name[end] != '.') return name;
  return absl::StrCat(name.substr(0, at), by, name.substr(end + 1));
}

Slice Builder::NewValue(const std::string& name, v1::BufferClass cls, kernels::DType dtype,
                        const Dims& dims) {
  std::string full;
  if (micro_batch != kNone) absl::StrAppend(&full, "mb", micro_batch, ".");
  if (layer != kNone) absl::StrAppend(&full, "layer", layer, ".");
  if (!variant.empty()) absl::StrAppend(&full, variant, ".");
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
  if (group == kNone) return;
  Append(compiler::Collective{v1::ALL_REDUCE, group}, {operand}, std::move(text));
}

void Builder::Collective(v1::CollectiveKind kind, int group, Slice from, Slice to,
                         std::string text) {
  Append(compiler::Collective{kind, group}, {from, to}, std::move(text));
}

void Builder::Send(int group, int peer_stage, int done_by_pass, Slice operand, std::string text) {
  Append(Transfer{v1::SEND, group, peer_stage, done_by_pass}, {operand}, std::move(text));
}

void Builder::Receive(int group, int peer_stage, Slice operand, std::string text) {
  Append(Transfer{v1::RECEIVE, group, peer_stage}, {operand}, std::move(text));
}

void Builder::Copy(v1::CopyKind kind, std::vector<Slice> pairs, std::string text) {
  Append(compiler::Copy{kind}, std::move(pairs), std::move(text));
}

void Builder::Input(v1::InputKind kind, std::vector<Slice> operands, std::string text) {
  Append(compiler::Input{kind}, std::move(operands), std::move(text));
}

void Builder::Output(v1::OutputKind kind, Slice operand, std::string text) {
  Append(compiler::Output{kind}, {operand}, std::move(text));
}

void Builder::Repeat(Node node) {
  node.phase = phase;
  node.mark = mark_;
  node.turn = turn_;
  node.pass = pass_;
  nodes().push_back(std::move(node));
}

void Builder::RecordOnly(Node node) {
  Stamp(&node);
  if (record != nullptr) record->push_back(std::move(node));
}

void Builder::Stamp(Node* node) const {
  node->phase = phase;
  node->layer = layer;
  node->micro_batch = micro_batch;
  node->mark = mark_;
  node->turn = turn_;
  node->pass = pass_;
  node->has_rule = has_rule;
  node->fetch = fetch;
}

}  // namespace terrace::compiler
