// The judge of gradients: that nothing in it is rounded to f32, and what it does not take.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/system/exact_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/system/layout_data.h"

namespace terrace {
namespace {

using testing::HasSubstr;

JobData DataOf(const std::string& family) {
  return RandomJob(MatrixModel(family), /*rows=*/8, /*length=*/16);
}

v1::Program CompileOne(const JobData& data, v1::Layout layout) {
  layout.set_threads_per_rank(1);
  auto programs = CompileJob(data, layout);
  EXPECT_TRUE(programs.ok()) << programs.status();
  return programs.ok() ? programs->front() : v1::Program();
}

// Eight rows at once or two by two.
v1::Layout Split(uint32_t micro_batches) {
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batch(8 / micro_batches);
  layout.set_micro_batches(micro_batches);
  return layout;
}

template <typename T>
double Error(const std::vector<T>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return a.size() == b.size() ? std::sqrt(difference / norm) : INFINITY;
}

TEST(ExactGradientsTest, TheOrderOfSumsMovesOnlyLastPlacesOfDoubles) {
  for (const std::string& family : Families()) {
    const JobData data = DataOf(family);
    const auto whole = ExactGradients(data, CompileOne(data, Split(1)));
    const auto parts = ExactGradients(data, CompileOne(data, Split(4)));
    ASSERT_TRUE(whole.ok() && parts.ok()) << whole.status() << parts.status();
    for (const Tensor& tensor : data.model.tensors) {
      const double error = Error(parts->at(tensor.name), whole->at(tensor.name));
      // A key's bias moves all scores of a query alike: nothing but rotary angles is left of it.
      EXPECT_LT(error, tensor.role == TensorRole::kKBias ? 1e-11 : 1e-12)
          << family << " " << tensor.name;
    }
  }
}

TEST(ExactGradientsTest, KernelsInF32AreOffByTheirRounding) {
  const JobData data = DataOf("llama");
  const auto exact = ExactGradients(data, CompileOne(data, Split(4)));
  ASSERT_TRUE(exact.ok()) << exact.status();
  const JobResult f32 = TrainLayout(data, Split(4), 1);
  for (const Tensor& tensor : data.model.tensors) {
    const double error = Error(f32.gradients.at(tensor.name), exact->at(tensor.name));
    EXPECT_LT(error, 2e-6) << tensor.name;
    EXPECT_GT(error, 1e-8) << tensor.name;
  }
}

TEST(ExactGradientsTest, OtherTypesAndSeveralRanksAreRefused) {
  const JobData data = DataOf("llama");
  v1::Layout layout = Split(4);
  layout.set_precision("bf16");
  EXPECT_THAT(ExactGradients(data, CompileOne(data, layout)).status().ToString(),
              HasSubstr("UNIMPLEMENTED: not in double"));
  layout = Split(4);
  layout.set_data_parallel(2);
  EXPECT_THAT(ExactGradients(data, CompileOne(data, layout)).status().ToString(),
              HasSubstr("UNIMPLEMENTED: in double only"));
}

}  // namespace
}  // namespace terrace
