// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/coded_sum.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {
namespace {

using kernels::DType;
using kernels::Op;

class CodedSum {
 public:
  CodedSum(const CodedSumOptions& options, Graph* graph) : options_(options), graph_(*graph) {}

  // Sends what `from` has; `after` says which exchange it is.
  void Send(Slice from, Slice residual, const CodedSumLevel& level, int64_t runs,
            const std::string& after, std::vector<Node>* nodes) {
    const int64_t elements = from.shape.Elements(), bytes = elements / level.format->packed;
    attrs_ = {.format = level.format->format,
              .block = std::gcd(level.format->block, options_.part.shape.Elements())};
    const Slice codes = Message("codes.own", after, DType::kU8, bytes);
    const Slice scales = Message("scales.own", after, DType::kF32, elements / attrs_.block);
    codes_ = Message("codes", after, DType::kU8, bytes);
    scales_ = Message("scales", after, DType::kF32, elements / attrs_.block);
    kernels::BlockAttrs attrs = attrs_;
    attrs.runs = runs;
    attrs.parts = runs > 1 ? level.ranks : 1;
    nodes->push_back({.what = Compute{Op::kEncodeBlocks, attrs},
                      .operands = {from, codes, scales, residual},
                      .text = absl::StrCat("encode ", options_.name, after)});
    const auto exchange = [&](Slice own, Slice others, const char* what) {
      nodes->push_back({.what = Collective{v1::ALL_TO_ALL, level.group},
                        .operands = {own, others},
                        .text = absl::StrCat("exchange ", what, options_.name, after)});
    };
    exchange(scales, scales_, "scales of ");
    exchange(codes, codes_, "");
    parts_ = level.ranks;
  }

  // Adds up what the last Send() sent.
  Node AddUp(Slice to, const std::string& after) const {
    return {.what = Compute{Op::kSumBlocks, attrs_},
            .operands = {InParts(codes_), InParts(scales_), to},
            .text = absl::StrCat("sum ", options_.name, after)};
  }

  Slice Message(const char* kind, const std::string& after, DType dtype, int64_t count) {
    return graph_.Whole(graph_.Add({.name = absl::StrCat(kind, ".", options_.name, after),
                                    .cls = v1::COMMUNICATION,
                                    .dtype = dtype,
                                    .shape = {count},
                                    .sequence = options_.sequence}));
  }

 private:
  Slice InParts(Slice flat) const {
    flat.shape = DenseShape(flat.shape.dtype, {parts_, flat.shape.Elements() / parts_});
    return flat;
  }

  const CodedSumOptions& options_;
  Graph& graph_;
  kernels::BlockAttrs attrs_;  // of what was sent last
  Slice codes_, scales_;       // of the others
  int64_t parts_ = 1;
};

}  // namespace

std::vector<std::vector<Node>> SumInCodes(const CodedSumOptions& options, Graph* graph) {
  CodedSum sum(options, graph);
  std::vector<std::vector<Node>> nodes(options.levels.size() + 1);
  if (options.levels.size() == 1) {
    sum.Send(options.all, options.residual, options.levels[0], 1, "", &nodes[0]);
    nodes[1].push_back(sum.AddUp(options.part, ""));
    return nodes;
  }
  // The parts of each block's ranks lie together; a rank of this block gets those of one place.
  const int64_t blocks = options.levels[1].ranks;
  sum.Send(options.all, options.residual, options.levels[0], blocks, " nearby", &nodes[0]);
  const Slice of_block =
      sum.Message("sum", " nearby", DType::kF32, blocks * options.part.shape.Elements());
  nodes[1].push_back(sum.AddUp(of_block, " nearby"));
  sum.Send(of_block, Slice(), options.levels[1], 1, " of blocks", &nodes[1]);
  nodes[2].push_back(sum.AddUp(options.part, " of blocks"));
  return nodes;
}

}  // namespace terrace::compiler
