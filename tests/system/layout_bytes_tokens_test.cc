// The bytes that ranks send that share each layer's products or each sequence's tokens.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/system/layout_bytes.h"

namespace terrace {
namespace {

// Norms and biases that every tensor-parallel rank holds.
int64_t WholeVectors(const ModelConfig& c) {
  const int64_t norms = c.norm == NormKind::kLayerNorm ? 2 * c.hidden : c.hidden;
  const int64_t biases = c.mlp == MlpKind::kPlain ? 2 * c.hidden : 0;  // of the products by inputs
  return c.layers * (2 * norms + biases) + norms;
}
int64_t HeadNorms(const ModelConfig& c) { return c.qk_norm ? c.layers * 2 * c.head_dim : 0; }

// The embedding and two products of each layer are summed forward, the inputs of the others and of
// the head backward: each sum is an all-reduce of the hidden state.
TEST(BytesTest, TensorParallelRanksSumTheHiddenStateFourTimesALayer) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* family : {"gpt2", "llama", "qwen3"}) {
      Job job = NewJob(family, precision);
      job.layout.set_tensor_parallel(2);
      const int64_t sums = 4 * job.layers() + 2;
      const int64_t pass = sums * 2 * Share(job.hidden_bytes(), 2) + LossRows(job, 2);
      ExpectSent(job, [&](int64_t rank) -> Sent {
        return {{"tensor", job.passes() * pass + AllReduce(HeadNorms(job.config()), 2, rank)},
                {"model", AllReduce(1, 2, rank)}};
      });
    }
  }
}

// Four ranks, two key-value heads: pairs of ranks hold the same one and sum its gradients.
TEST(BytesTest, RanksThatShareAKeyValueHeadSumItsGradient) {
  Job job = NewJob("llama");
  job.layout.set_tensor_parallel(4);
  const int64_t pass = (4 * job.layers() + 2) * 2 * Share(job.hidden_bytes(), 4) + LossRows(job, 4);
  const int64_t keys_and_values = job.layers() * 2 * job.config().head_dim * job.config().hidden;
  ExpectSent(job, [&](int64_t rank) -> Sent {
    return {{"tensor", job.passes() * pass},
            {"tensor_block", AllReduce(keys_and_values, 2, rank % 2)},
            {"model", AllReduce(1, 4, rank)}};
  });
}

// Each all-reduce becomes a reduce-scatter and an all-gather of half the bytes, which have their
// counterparts in the other direction.
TEST(BytesTest, SequenceParallelismSendsWhatTensorParallelismDoes) {
  for (const char* family : {"gpt2", "llama", "qwen3"}) {
    Job job = NewJob(family, "bf16");
    job.layout.set_tensor_parallel(2);
    job.layout.set_sequence_parallel(true);
    const int64_t halves = 2 * (4 * job.layers() + 2);
    const int64_t pass = halves * Share(job.hidden_bytes(), 2) + LossRows(job, 2);
    const int64_t vectors = WholeVectors(job.config()) + HeadNorms(job.config());
    ExpectSent(job, [&](int64_t rank) -> Sent {
      return {{"tensor", job.passes() * pass + AllReduce(vectors, 2, rank)},
              {"model", AllReduce(1, 2, rank)}};
    });
  }
}

// ---- context parallelism

// Keys and values go all but once round the ring in both directions; their gradients, in f32, all
// the way.
TEST(BytesTest, RingAttentionSendsKeysAndValuesRound) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (uint32_t ranks : {2, 4}) {
      Job job = NewJob("llama", precision);
      job.layout.set_context_parallel(ranks);
      const int64_t pair = job.tokens() * 2 * job.config().kv_heads * job.config().head_dim;
      const int64_t layer = 2 * (ranks - 1) * pair * job.activation() + ranks * pair * kF32;
      const int64_t gradient = kF32 * GradientElements(job);
      ExpectSent(job, [&](int64_t rank) -> Sent {
        return {{"context", job.passes() * job.layers() * layer},
                {"data", 2 * gradient / ranks * (ranks - 1)},
                {"totals", AllReduce(2, ranks, rank)}};
      });
    }
  }
}

// q, k, v and the result change places, and so do their gradients.
TEST(BytesTest, UlyssesExchangesHeadsForTokens) {
  for (const char* precision : {"fp32", "bf16"}) {
    Job job = NewJob("llama", precision);
    job.layout.set_context_parallel(2);
    job.layout.set_context_type("ulysses");
    const ModelConfig& c = job.config();
    const int64_t columns = 2 * (c.heads + c.kv_heads) * c.head_dim;
    const int64_t layer = 2 * Share(job.tokens() * columns * job.activation(), 2);
    ExpectSent(job, [&](int64_t rank) -> Sent {
      return {{"context", job.passes() * job.layers() * layer},
              {"data", kF32 * GradientElements(job)},
              {"totals", AllReduce(2, 2, rank)}};
    });
  }
}

}  // namespace
}  // namespace terrace
