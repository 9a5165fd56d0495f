// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/emit.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/model/lora.h"
#include "proto/program/grid.h"
#include "proto/program/op_codec.h"
#include "proto/program/state_layout.h"

namespace terrace::compiler {
namespace {

using kernels::Access;
using kernels::SizeOf;

class Emitter {
 public:
  Emitter(const EmitInput& input, v1::Program* program)
      : graph_(*input.graph), input_(input), program_(*program) {}

  absl::Status Run() {
    Arenas();
    Buffers();
    for (const v1::Stream& stream : graph_.streams) *program_.add_streams() = stream;
    for (const v1::Group& group : graph_.groups) *program_.add_groups() = group;
    for (const Sequence& sequence : graph_.sequences) RETURN_IF_ERROR(EmitSequence(sequence));
    for (const Parameter& parameter : input_.parameters->all()) State(parameter);
    for (const Tensor& tensor : input_.model->tensors) Initializer(tensor);
    for (const auto& [name, holder] : input_.model->tied) (*program_.mutable_tied())[name] = holder;
    RopeTable(input_.rope_tables.rope, input_.model->config.rope);
    RopeTable(input_.rope_tables.local, input_.model->config.local_rope);
    return absl::OkStatus();
  }

 private:
  // The device's, and one of each other tier that something lies on.
  void Arenas() {
    arenas_.assign(v1::Tier_MAX + 1, kNone);
    for (const v1::Tier tier : {v1::DEVICE, v1::HOST, v1::NVME}) {
      const bool used = std::any_of(
          graph_.values.begin(), graph_.values.end(),
          [tier](const Value& value) { return value.inside == kNone && value.tier == tier; });
      if (!used && tier != v1::DEVICE) continue;
      arenas_[tier] = program_.arenas_size();
      v1::Arena* arena = program_.add_arenas();
      arena->set_id(arenas_[tier]);
      arena->set_tier(tier);
    }
  }

  // One buffer for each value that lies in no other: what persists first, then the steps', in order
  // of creation.
  void Buffers() {
    buffers_.assign(graph_.values.size(), kNone);
    for (const v1::Lifetime lifetime : {v1::PERSISTENT, v1::STEP}) {
      for (size_t i = 0; i < graph_.values.size(); ++i) {
        const Value& value = graph_.values[i];
        if (value.inside == kNone && value.lifetime == lifetime) AddBuffer(value, &buffers_[i]);
      }
    }
  }

  void AddBuffer(const Value& value, int* id) {
    *id = program_.buffers_size();
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(*id);
    buffer->set_name(value.name);
    buffer->set_class_(value.cls);
    buffer->set_dtype(EncodeDType(value.dtype));
    for (int64_t size : value.shape) buffer->add_shape(size);
    buffer->set_bytes(value.elements() * SizeOf(value.dtype));
    buffer->set_lifetime(value.lifetime);
    buffer->set_arena(arenas_[value.tier]);
    if (value.sequence != kNone) buffer->set_sequence(graph_.sequences[value.sequence].name);
  }

  absl::Status EmitSequence(const Sequence& sequence) {
    v1::Sequence* out = program_.add_sequences();
    out->set_name(sequence.name);
    out->set_sequence_length(sequence.sequence_length);
    for (const Node& node : sequence.nodes) {
      RETURN_IF_ERROR(CheckShapes(node));
      EmitNode(node, out);
    }
    return absl::OkStatus();
  }

  static absl::Status CheckShapes(const Node& node) {
    const Compute* compute = node.compute();
    if (compute == nullptr) return absl::OkStatus();
    const std::string error = kernels::CheckShapes(compute->op, compute->attrs, ShapesOf(node));
    if (error.empty()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("compiled an op that breaks its own rule: ", error,
                                            " (layer ", node.layer, ", ", node.text, ")"));
  }

  void EmitNode(const Node& node, v1::Sequence* sequence) {
    v1::Instruction* out = sequence->add_instructions();
    out->set_id(sequence->instructions_size() - 1);
    EmitKind(node, out);
    for (int i = 0; i < static_cast<int>(node.operands.size()); ++i) {
      EmitOperand(node.operands[i], AccessOf(node, i), out->add_operands());
    }
    out->set_stream(node.stream);
    for (int wait : node.waits) out->add_waits(wait);
    out->set_phase(node.phase);
    out->set_layer(node.layer);
    out->set_micro_batch(node.micro_batch);
    out->set_text(node.text);
  }

  void EmitKind(const Node& node, v1::Instruction* out) {
    if (const Compute* compute = node.compute()) {
      EncodeOp(compute->op, compute->attrs, out->mutable_compute());
      if (compute->op == kernels::Op::kUpdateStochastic) {
        auto* rounding = out->mutable_compute()->mutable_update()->mutable_rounding();
        rounding->set_buffer(buffers_[rounding->buffer()]);
      }
      if (!node.workspace.absent()) {
        EmitOperand(node.workspace, Access::kWrite, out->mutable_compute()->mutable_workspace());
      }
    } else if (const auto* collective = std::get_if<Collective>(&node.what)) {
      out->mutable_collective()->set_kind(collective->kind);
      out->mutable_collective()->set_group(collective->group);
    } else if (const auto* transfer = std::get_if<Transfer>(&node.what)) {
      out->mutable_transfer()->set_kind(transfer->kind);
      out->mutable_transfer()->set_group(transfer->group);
      out->mutable_transfer()->set_peer_stage(transfer->peer_stage);
    } else if (const Copy* copy = node.copy()) {
      out->mutable_copy()->set_kind(copy->kind);
    } else if (const auto* load = std::get_if<Input>(&node.what)) {
      out->mutable_input()->set_kind(load->kind);
    } else {
      out->mutable_output()->set_kind(std::get<Output>(node.what).kind);
    }
  }

  void EmitOperand(const Slice& slice, Access access, v1::Operand* out) {
    if (slice.absent() || access == Access::kNone) return;
    const Slice root = graph_.Root(slice);
    out->set_access(static_cast<v1::Access>(access));
    out->set_buffer(buffers_[root.value]);
    out->set_offset(root.offset * SizeOf(root.shape.dtype));
    out->set_dtype(EncodeDType(root.shape.dtype));
    for (int d = 0; d < root.shape.dims; ++d) out->add_shape(root.shape.size[d]);
    if (!root.shape.dense()) out->set_row_stride(root.shape.row_stride);
  }

  void State(const Parameter& parameter) {
    const Unit& unit = input_.parameters->units()[parameter.unit];
    const int weights = unit.sharded() ? unit.master : parameter.weight;
    if (unit.codes == nullptr) {
      StateOfKind(parameter, v1::WEIGHT, weights);
    } else {
      const int scales = unit.sharded() ? unit.scales : parameter.scales;
      StateInBlocks(parameter, v1::WEIGHT, weights, unit.codes->packed);
      const int before = program_.state_size();
      StateInBlocks(parameter, v1::WEIGHT, scales, input_.parameters->frozen_block());
      for (int i = before; i < program_.state_size(); ++i) {
        v1::StateRange* range = program_.mutable_state(i);
        range->set_tensor(CodeScalesName(range->tensor()));
      }
    }
    const Moments& moments = unit.sharded() ? unit.moments : parameter.moments;
    for (size_t i = 0; i < moments.numbers.size(); ++i) {
      if (moments.numbers[i] != kNone) StateOfKind(parameter, kMomentKinds[i], moments.numbers[i]);
    }
    for (size_t i = 0; i < moments.factors.size(); ++i) {
      if (moments.factors[i] != kNone) Factor(parameter, kFactorKinds[i], moments.factors[i]);
    }
    if (unit.residual != kNone) Residual(parameter, unit);
    for (size_t i = 0; i < moments.scales.size(); ++i) {
      if (moments.scales[i] == kNone) continue;
      StateInBlocks(parameter, kScalesKinds[i], moments.scales[i],
                    input_.parameters->moment_block());
    }
  }

  // `value` holds the parameter, or this rank's shard of the parameter's unit.
  void StateOfKind(const Parameter& parameter, v1::StateKind kind, int value) {
    const Unit& unit = input_.parameters->units()[parameter.unit];
    const Slice root = graph_.Root(graph_.Whole(value));
    const int64_t start = unit.sharded() ? parameter.offset : root.offset;
    for (const Part& part : parameter.parts) {
      v1::StateRange* range = program_.add_state();
      range->set_tensor(part.tensor->name);
      range->set_kind(kind);
      for (int64_t size : part.tensor->shape) range->add_shape(size);
      range->set_row(part.row);
      range->set_rows(part.rows);
      range->set_column(part.column);
      range->set_columns(part.columns);
      range->set_split(part.split);
      range->set_split_block(parameter.split_block);
      range->set_buffer(buffers_[root.value]);
      range->set_offset((start + part.offset) * SizeOf(root.shape.dtype));
      range->set_row_stride(part.row_stride);
      range->set_dtype(EncodeDType(root.shape.dtype));
      range->set_shard_elements(unit.shard_elements);
      range->set_copy(parameter.copy);
    }
  }

  // Each part has one element for each row, or one for each column. Shards of a unit that is dealt
  // hold those of one parameter each.
  void Factor(const Parameter& parameter, v1::StateKind kind, int value) {
    const Unit& unit = input_.parameters->units()[parameter.unit];
    const Slice root = graph_.Root(graph_.Whole(value));
    const int64_t shard_elements = unit.dealt ? graph_.values[value].elements() : 0;
    int64_t offset =
        unit.dealt ? parameter.offset / unit.shard_elements * shard_elements : root.offset;
    for (const Part& part : parameter.parts) {
      const int64_t elements = compiler::FactorElements(part, kind);
      v1::StateRange* range = program_.add_state();
      range->set_tensor(part.tensor->name);
      range->set_kind(kind);
      range->add_shape(elements);
      range->set_rows(1);
      range->set_columns(elements);
      range->set_split(v1::StateRange::WHOLE);
      range->set_split_block(parameter.split_block);
      range->set_buffer(buffers_[root.value]);
      range->set_offset(offset * SizeOf(root.shape.dtype));
      range->set_row_stride(elements);
      range->set_dtype(EncodeDType(root.shape.dtype));
      range->set_shard_elements(shard_elements);
      range->set_copy(parameter.copy);
      offset += elements;
    }
  }

  // As StateOfKind, of as many tensors as ranks share the unit, one below the other.
  void Residual(const Parameter& parameter, const Unit& unit) {
    const int before = program_.state_size();
    StateOfKind(parameter, v1::RESIDUAL, unit.residual);
    for (int i = before; i < program_.state_size(); ++i) {
      v1::StateRange* range = program_.mutable_state(i);
      range->set_shape(0, range->shape(0) * ShardCount(program_.grid()));
      range->set_shard_elements(unit.elements);
      range->set_by_rank(true);
    }
  }

  // As StateOfKind, where a block of elements has become one: their scale, or a byte of codes.
  void StateInBlocks(const Parameter& parameter, v1::StateKind kind, int value, int64_t block) {
    const int before = program_.state_size();
    StateOfKind(parameter, kind, value);
    const Unit& unit = input_.parameters->units()[parameter.unit];
    const Slice root = graph_.Root(graph_.Whole(value));
    const int64_t start = unit.shard_elements > 0 ? parameter.offset / block : root.offset;
    for (size_t i = 0; i < parameter.parts.size(); ++i) {
      const Part& part = parameter.parts[i];
      v1::StateRange* range = program_.mutable_state(before + static_cast<int>(i));
      const std::vector<int64_t> shape = ScalesShape(part.tensor->shape, block);
      range->mutable_shape()->Assign(shape.begin(), shape.end());
      range->set_offset((start + part.offset / block) * SizeOf(root.shape.dtype));
      range->set_shard_elements(unit.shard_elements / block);
      if (shape.size() > 1) {
        range->set_column(part.column / block);
        range->set_columns(part.columns / block);
        range->set_row_stride(part.row_stride / block);
      } else {  // the whole tensor (MomentBlock in layout/formats.h)
        range->set_row(0);
        range->set_rows(1);
        range->set_columns(shape[0]);
        range->set_row_stride(shape[0]);
      }
    }
  }

  void Initializer(const Tensor& tensor) {
    v1::Initializer* out = program_.add_initializers();
    out->set_tensor(tensor.name);
    for (int64_t size : tensor.shape) out->add_shape(size);
    out->set_frozen(input_.parameters->IsFrozen(tensor));
    const v1::OptimizerRule rule = EncodeRule(input_.parameters->RuleOf(tensor));
    if (!out->frozen() && rule != program_.rules().optimizer()) out->set_optimizer(rule);
    if (const auto weights = input_.parameters->WeightsOf(tensor); weights != kernels::DType::kF32)
      out->set_weights(EncodeDType(weights));
    if (const auto moments = input_.parameters->MomentsOf(tensor); moments != kernels::DType::kF32)
      out->set_moments(EncodeDType(moments));
    if (const auto residual = input_.parameters->ResidualOf(tensor))
      out->set_residual(EncodeDType(*residual));
    if (const kernels::FormatRow* codes = input_.parameters->CodesOf(tensor)) {
      out->set_blocks(EncodeBlockFormat(codes->format));
      out->set_block(input_.parameters->frozen_block());
    }
    out->set_adapter(IsAdapter(tensor.role));
    if (tensor.init == Init::kNormal || tensor.init == Init::kUniform) {
      out->set_kind(tensor.init == Init::kNormal ? v1::Initializer::NORMAL
                                                 : v1::Initializer::UNIFORM);
      out->set_stddev(static_cast<float>(tensor.stddev));
    } else {
      out->set_kind(v1::Initializer::CONSTANT);
      out->set_mean(tensor.init == Init::kOnes ? 1.0f : 0.0f);
    }
  }

  void RopeTable(int value, const RopeConfig& rope) {
    if (value == kNone) return;
    v1::RopeTable* out = program_.add_rope_tables();
    out->set_buffer(buffers_[value]);
    for (double frequency : rope.inverse_frequency) out->add_inverse_frequency(frequency);
    out->set_attention_factor(rope.attention_factor);
  }

  const Graph& graph_;
  const EmitInput& input_;
  v1::Program& program_;
  std::vector<int> arenas_;   // by tier; kNone for one that nothing lies on
  std::vector<int> buffers_;  // by value; kNone for one that lies in another
};

}  // namespace

absl::Status Emit(const EmitInput& input, v1::Program* program) {
  return Emitter(input, program).Run();
}

}  // namespace terrace::compiler
