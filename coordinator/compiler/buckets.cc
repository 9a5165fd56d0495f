// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/buckets.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {
namespace {

struct Finished {
  size_t last_writer = 0;
  int gradient = kNone;
  Sums sums;
};

std::vector<Finished> InOrderOfFinish(const Parameters& parameters,
                                      const ParameterGradients& gradients,
                                      const std::vector<Node>& nodes) {
  std::map<int, size_t> last_writer;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (size_t k = 0; k < nodes[i].operands.size(); ++k) {
      if (Writes(nodes[i], static_cast<int>(k))) last_writer[nodes[i].operands[k].value] = i;
    }
  }
  std::vector<Finished> finished;
  for (const auto& [parameter, gradient] : gradients.by_parameter()) {
    finished.push_back({last_writer.at(gradient), gradient, parameters.all()[parameter].sums});
  }
  std::sort(finished.begin(), finished.end(), [](const Finished& a, const Finished& b) {
    return std::tie(a.last_writer, a.gradient) < std::tie(b.last_writer, b.gradient);
  });
  return finished;
}

}  // namespace

std::vector<Bucket> MakeBuckets(const Parameters& parameters, const ParameterGradients& gradients,
                                int64_t bucket_bytes, int sequence, Graph* graph) {
  std::vector<Bucket> buckets;
  std::map<Sums, size_t> open;  // the bucket that takes the next gradient
  const int64_t limit = bucket_bytes / kernels::SizeOf(kernels::DType::kF32);
  for (const auto& [last_writer, gradient, sums] :
       InOrderOfFinish(parameters, gradients, graph->sequences[sequence].nodes)) {
    const int64_t elements = graph->values[gradient].elements();
    const auto it = open.find(sums);
    const int64_t used =
        it == open.end() ? limit : graph->values[buckets[it->second].value].shape[0];
    if (it == open.end() || (used > 0 && used + elements > limit)) {
      open[sums] = buckets.size();
      const int value = graph->Add({.name = absl::StrCat("grads.bucket", buckets.size()),
                                    .cls = v1::GRADIENT,
                                    .shape = {0},
                                    .sequence = sequence});
      buckets.push_back({.value = value, .sums = sums});
    }
    Bucket& bucket = buckets[open.at(sums)];
    int64_t& end = graph->values[bucket.value].shape[0];
    graph->values[gradient].inside = bucket.value;
    graph->values[gradient].inside_offset = end;
    end += elements;
    bucket.last_writer = last_writer;
  }
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const Bucket& a, const Bucket& b) { return a.last_writer < b.last_writer; });
  return buckets;
}

}  // namespace terrace::compiler
