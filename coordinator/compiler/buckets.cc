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
};

bool Writes(const Node& node, int operand) {
  const kernels::Access access = AccessOf(node, operand);
  return access == kernels::Access::kWrite || access == kernels::Access::kUpdate;
}

std::vector<Finished> InOrderOfFinish(const ParameterGradients& gradients,
                                      const std::vector<Node>& nodes) {
  std::map<int, size_t> last_writer;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (size_t k = 0; k < nodes[i].operands.size(); ++k) {
      if (Writes(nodes[i], static_cast<int>(k))) last_writer[nodes[i].operands[k].value] = i;
    }
  }
  std::vector<Finished> finished;
  for (const auto& [weight, gradient] : gradients.all()) {
    finished.push_back({last_writer.at(gradient), gradient});
  }
  std::sort(finished.begin(), finished.end(), [](const Finished& a, const Finished& b) {
    return std::tie(a.last_writer, a.gradient) < std::tie(b.last_writer, b.gradient);
  });
  return finished;
}

}  // namespace

std::vector<Bucket> MakeBuckets(const ParameterGradients& gradients, int64_t bucket_bytes,
                                int sequence, Graph* graph) {
  std::vector<Bucket> buckets;
  const int64_t limit = bucket_bytes / kernels::SizeOf(kernels::DType::kF32);
  for (const auto& [last_writer, gradient] :
       InOrderOfFinish(gradients, graph->sequences[sequence].nodes)) {
    const int64_t elements = graph->values[gradient].elements();
    const int64_t used = buckets.empty() ? limit : graph->values[buckets.back().value].shape[0];
    if (used > 0 && used + elements > limit) {
      const int value = graph->Add({.name = absl::StrCat("grads.bucket", buckets.size()),
                                    .cls = v1::GRADIENT,
                                    .shape = {0},
                                    .sequence = sequence});
      buckets.push_back({.value = value});
    }
    int64_t& end = graph->values[buckets.back().value].shape[0];
    graph->values[gradient].inside = buckets.back().value;
    graph->values[gradient].inside_offset = end;
    end += elements;
    buckets.back().last_writer = last_writer;
  }
  return buckets;
}

void InsertWhenFinal(const std::vector<Bucket>& buckets, int sequence,
                     const std::function<Node(size_t bucket)>& make, Graph* graph) {
  std::vector<Node> result;
  std::vector<Node>& nodes = graph->sequences[sequence].nodes;
  size_t next = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    result.push_back(std::move(nodes[i]));
    for (; next < buckets.size() && buckets[next].last_writer == i; ++next) {
      result.push_back(make(next));
    }
  }
  nodes = std::move(result);
}

}  // namespace terrace::compiler
