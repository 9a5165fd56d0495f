// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/coded_sum.h"

#include <numeric>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {

using kernels::DType;
using kernels::Op;

CodedSum SumInCodes(const CodedSumOptions& options, Graph* graph) {
  const int64_t elements = options.all.shape.Elements(), own = options.part.shape.Elements();
  const kernels::BlockAttrs attrs = {.format = options.format.format,
                                     .block = std::gcd(options.format.block, own)};
  const auto message = [&](const char* kind, DType dtype, int64_t count) {
    return graph->Whole(graph->Add({.name = absl::StrCat(kind, ".", options.name),
                                    .cls = v1::COMMUNICATION,
                                    .dtype = dtype,
                                    .shape = {count},
                                    .sequence = options.sequence}));
  };
  const auto exchange = [&](Slice from, Slice to, const char* what) {
    return Node{.what = Collective{v1::ALL_TO_ALL, options.group},
                .operands = {from, to},
                .text = absl::StrCat("exchange ", what, options.name)};
  };
  const auto in_parts = [&](Slice flat) {
    const int64_t parts = elements / own;
    flat.shape = DenseShape(flat.shape.dtype, {parts, flat.shape.Elements() / parts});
    return flat;
  };
  const Slice codes = message("codes.own", DType::kU8, elements);
  const Slice scales = message("scales.own", DType::kF32, elements / attrs.block);
  const Slice others = message("codes", DType::kU8, elements);
  const Slice others_scales = message("scales", DType::kF32, elements / attrs.block);
  Node encode = {.what = Compute{Op::kEncodeBlocks, attrs},
                 .operands = {options.all, codes, scales},
                 .text = "encode " + options.name};
  return {.sent = {std::move(encode), exchange(scales, others_scales, "scales of "),
                   exchange(codes, others, "")},
          .added_up = {.what = Compute{Op::kSumBlocks, attrs},
                       .operands = {in_parts(others), in_parts(others_scales), options.part},
                       .text = "sum " + options.name}};
}

}  // namespace terrace::compiler
