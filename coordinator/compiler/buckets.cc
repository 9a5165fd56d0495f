// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/buckets.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/tiers/tiers.h"

namespace terrace::compiler {
namespace {

struct Written {
  size_t first_writer = 0, last_writer = 0;
  int gradient = kNone;
  Sums sums;
  bool streamed = false;
};

// The last parameter first. Parameters are in the order of the forward pass.
std::vector<Written> InOrderOfBackward(const Parameters& parameters,
                                       const ParameterGradients& gradients,
                                       const std::vector<Node>& nodes) {
  std::map<int, size_t> first_writer, last_writer;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (size_t k = 0; k < nodes[i].operands.size(); ++k) {
      if (!Writes(nodes[i], static_cast<int>(k))) continue;
      first_writer.try_emplace(nodes[i].operands[k].value, i);
      last_writer[nodes[i].operands[k].value] = i;
    }
  }
  std::vector<Written> written;
  for (const auto& [parameter, gradient] : gradients.by_parameter()) {
    const Parameter& of = parameters.all()[parameter];
    written.push_back(
        {first_writer.at(gradient), last_writer.at(gradient), gradient, of.sums, of.streamed()});
  }
  std::reverse(written.begin(), written.end());
  return written;
}

}  // namespace

std::vector<Bucket> MakeBuckets(const Parameters& parameters, const ParameterGradients& gradients,
                                int64_t bucket_bytes, int sequence, Graph* graph) {
  std::vector<Bucket> buckets;
  // The bucket that takes the next gradient.
  std::map<std::tuple<Sums, bool, kernels::DType>, size_t> open;
  for (const Written& written :
       InOrderOfBackward(parameters, gradients, graph->sequences[sequence].nodes)) {
    const int64_t elements = graph->values[written.gradient].elements();
    const kernels::DType dtype = graph->values[written.gradient].dtype;
    const int64_t limit = bucket_bytes / kernels::SizeOf(dtype);
    const std::tuple key = {written.sums, written.streamed, dtype};
    const auto it = open.find(key);
    const int64_t used =
        it == open.end() ? limit : graph->values[buckets[it->second].value].shape[0];
    if (it == open.end() || (used > 0 && used + elements > limit)) {
      open[key] = buckets.size();
      const int value = graph->Add({.name = absl::StrCat("grads.bucket", buckets.size()),
                                    .cls = v1::GRADIENT,
                                    .dtype = dtype,
                                    .shape = {0},
                                    .sequence = sequence});
      buckets.push_back({.value = value,
                         .number = static_cast<int>(buckets.size()),
                         .sums = written.sums,
                         .streamed = written.streamed});
    }
    Bucket& bucket = buckets[open.at(key)];
    int64_t& end = graph->values[bucket.value].shape[0];
    graph->values[written.gradient].inside = bucket.value;
    graph->values[written.gradient].inside_offset = end;
    end += elements;
    if (const int64_t gap = bucket.streamed ? -end & (StreamedElements(dtype) - 1) : 0; gap > 0) {
      bucket.padding.push_back(
          {.slice = {.value = bucket.value, .offset = end, .shape = DenseShape(dtype, {gap})},
           .after = written.first_writer});
      end += gap;
    }
    bucket.last_writer = std::max(bucket.last_writer, written.last_writer);
  }
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const Bucket& a, const Bucket& b) { return a.last_writer < b.last_writer; });
  return buckets;
}

}  // namespace terrace::compiler
