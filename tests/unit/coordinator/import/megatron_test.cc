// Megatron-LM's flags become a job spec, model included.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr char kLlama[] = R"(
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel \
  --num-layers-per-virtual-pipeline-stage 5 --use-distributed-optimizer --overlap-grad-reduce \
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --vocab-size 128256 \
  --untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 500000 \
  --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 512 \
  --train-iters 5000 --lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine --lr-warmup-iters 500 \
  --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 --bf16 \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 2 \
  --data-path 0.3 /data/wiki_text_document 0.7 "/data/books_text_document" --split 949,50,1 \
  --attention-dropout 0.0 --transformer-impl transformer_engine --use-flash-attn)";

SpecDraft Import(std::string_view flags, const ImportContext& context = {.train = ""}) {
  auto draft = ImportMegatron(flags, context);
  EXPECT_TRUE(draft.ok()) << draft.status();
  return draft.ok() ? *std::move(draft) : SpecDraft();
}

std::map<std::string, ImportedSetting> ByName(const SpecDraft& draft) {
  std::map<std::string, ImportedSetting> settings;
  for (const ImportedSetting& setting : draft.settings()) settings[setting.setting] = setting;
  return settings;
}

v1::JobSpec Spec(const SpecDraft& draft) {
  auto spec = ParseJobSpec(draft.Yaml(), "/tmp");
  EXPECT_TRUE(spec.ok()) << spec.status() << "\n" << draft.Yaml();
  return spec.ok() ? *spec : v1::JobSpec();
}

TEST(MegatronTest, A70BScriptIsTheSameJob) {
  const v1::JobSpec spec = Spec(Import(kLlama));
  EXPECT_EQ(spec.layout().tp(), 8u);
  EXPECT_EQ(spec.layout().pp(), 4u);
  EXPECT_EQ(spec.layout().interleave(), 4u);
  EXPECT_EQ(spec.resources().nodes_max(), 4u);
  EXPECT_EQ(spec.resources().devices_per_node(), 8u);
  EXPECT_EQ(spec.layout().schedule(), "interleaved");
  EXPECT_EQ(spec.layout().sequence_parallel(), 1);
  EXPECT_EQ(spec.layout().zero(), 1);
  EXPECT_EQ(spec.layout().recompute(), "every");
  EXPECT_EQ(spec.layout().recompute_every(), 2u);
  EXPECT_EQ(spec.train().global_batch(), 512);
  EXPECT_DOUBLE_EQ(spec.train().optimizer().beta2(), 0.95);
  EXPECT_EQ(spec.data().train_size(), 2);
  EXPECT_EQ(spec.data().train(0), "/data/wiki_text_document.idx");
  EXPECT_NEAR(spec.data().validation_fraction(), 0.05, 1e-9);
  EXPECT_THAT(spec.model().config_json(), HasSubstr("\"num_key_value_heads\": 8,"));
  EXPECT_THAT(spec.model().config_json(), HasSubstr("128256"));
}

// Megatron-LM turns it off itself; kept, the spec would be refused.
TEST(MegatronTest, SequenceParallelismWithoutTensorParallelismIsLeftOut) {
  for (const char* tp : {"", "--tensor-model-parallel-size 1 "}) {
    const SpecDraft draft = Import(std::string(tp) +
                                   "--sequence-parallel --num-layers 2 "
                                   "--hidden-size 64 --num-attention-heads 4 --seq-length 32 "
                                   "--max-position-embeddings 32 --vocab-size 256");
    EXPECT_EQ(ByName(draft)["--sequence-parallel"].fate, Fate::kAutomatic);
    EXPECT_EQ(Spec(draft).layout().sequence_parallel(), -1);
  }
}

TEST(MegatronTest, NothingOfItIsUnknown) {
  const SpecDraft draft = Import(kLlama);
  for (const ImportedSetting& setting : draft.settings()) {
    EXPECT_NE(setting.fate, Fate::kUnknown) << setting.setting << ": " << setting.note;
  }
}

TEST(MegatronTest, AGpt2ScriptMakesGpt2sConfig) {
  const v1::JobSpec spec =
      Spec(Import("--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
                  "--max-position-embeddings 1024 --micro-batch-size 4 --vocab-size 50257"));
  EXPECT_THAT(spec.model().config_json(), HasSubstr("\"model_type\": \"gpt2\""));
  EXPECT_EQ(spec.train().global_batch(), 4);
  EXPECT_EQ(spec.train().precision(), "fp32");
}

TEST(MegatronTest, ZeroBubbleAndOffloadHaveCounterparts) {
  const v1::JobSpec spec =
      Spec(Import("--enable-zero-bubble --optimizer-cpu-offload --optimizer-offload-fraction 0.5 "
                  "--cp-comm-type a2a --context-parallel-size 2 --micro-batch-size 1",
                  {.model = "gpt2"}));
  EXPECT_EQ(spec.layout().schedule(), "zb-h1");
  EXPECT_DOUBLE_EQ(spec.layout().offload().optimizer().host(), 0.5);
  EXPECT_EQ(spec.layout().context_type(), "ulysses");
}

TEST(MegatronTest, UnknownFlagsNameTheNearestAndBadOnesTheRule) {
  const auto settings = ByName(Import("--micro-batch-sise 2 --num-experts 8", {.model = "gpt2"}));
  EXPECT_THAT(settings.at("--micro-batch-sise").note, HasSubstr("--micro-batch-size"));
  EXPECT_EQ(settings.at("--num-experts").fate, Fate::kAbsent);
  EXPECT_THAT(std::string(ImportMegatron("--num-layers many", {}).status().message()),
              HasSubstr("--num-layers: got 'many'"));
  EXPECT_THAT(std::string(ImportMegatron("nothing", {}).status().message()), HasSubstr("no flags"));
}

}  // namespace
}  // namespace terrace
