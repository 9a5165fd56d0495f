// Megatron-LM's flags become a job spec, model included.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron/megatron.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "coordinator/import/report.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::AllOf;
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
  ASSERT_EQ(spec.data().mixture_size(), 2);
  EXPECT_DOUBLE_EQ(spec.data().mixture(0).weight(), 0.3);
  EXPECT_DOUBLE_EQ(spec.data().mixture(1).weight(), 0.7);
  EXPECT_NEAR(spec.data().validation_fraction(), 0.05, 1e-9);
  EXPECT_THAT(spec.model().config_json(), HasSubstr("\"num_key_value_heads\": 8,"));
  EXPECT_THAT(spec.model().config_json(), HasSubstr("129024")) << "padded to 128 x 8";
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

constexpr char kSmall[] =
    "--num-layers 4 --hidden-size 4096 --num-attention-heads 32 --seq-length 128 "
    "--max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 "
    "--lr 1e-4 --vocab-size 32000 ";
constexpr char kLlamaFlags[] =
    "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope ";

nlohmann::json Model(const std::string& flags) {
  return nlohmann::json::parse(Spec(Import(kSmall + flags)).model().config_json());
}
std::string Refusal(const std::string& flags) {
  const auto draft = ImportMegatron(kSmall + flags, {});
  EXPECT_FALSE(draft.ok()) << flags;
  return std::string(draft.status().message());
}

// int((4 * hidden * 2 / 3) / 64) * 64, and 4 * hidden without the gate.
TEST(MegatronModelTest, TheInnerSizeIsMegatronsOwn) {
  EXPECT_EQ(Model(kLlamaFlags)["intermediate_size"], 10880);
  EXPECT_EQ(Model("")["n_inner"], 16384);
  EXPECT_EQ(Model(std::string(kLlamaFlags) + "--ffn-hidden-size 10944")["intermediate_size"],
            10944);
}

TEST(MegatronModelTest, TheVocabularyIsPaddedAsMegatronDoes) {
  EXPECT_EQ(Model("")["vocab_size"], 32000);
  EXPECT_EQ(Model("--vocab-size 50257")["vocab_size"], 50304);
  EXPECT_EQ(Model("--vocab-size 50257 --tensor-model-parallel-size 2")["vocab_size"], 50432);
  EXPECT_EQ(Model("--vocab-size 50257 --make-vocab-size-divisible-by 1")["vocab_size"], 50257);
  EXPECT_EQ(Model("--tokenizer-type NullTokenizer")["vocab_size"], 32128) << "and an end of text";
  EXPECT_THAT(
      ByName(Import(std::string(kSmall) + "--vocab-size 50257")).at("--num-layers ...").note,
      HasSubstr("padded to 50304"));
}

TEST(MegatronModelTest, BiasesNormsAndWindowsDecideTheFamily) {
  const std::string all = "--swiglu --normalization RMSNorm --position-embedding-type rope ";
  EXPECT_EQ(Model(kLlamaFlags)["model_type"], "llama");
  EXPECT_FALSE(Model(kLlamaFlags).contains("attention_bias"));
  EXPECT_EQ(Model(all)["model_type"], "llama");
  EXPECT_EQ(Model(all)["attention_bias"], true);
  EXPECT_EQ(Model(all)["mlp_bias"], true);
  EXPECT_EQ(Model(std::string(kLlamaFlags) + "--add-qkv-bias")["model_type"], "qwen2");
  EXPECT_EQ(Model(std::string(kLlamaFlags) + "--qk-layernorm")["model_type"], "qwen3");
  EXPECT_THAT(Refusal(all + "--qk-layernorm"), HasSubstr("give --disable-bias-linear"));
  const auto mistral = Model(std::string(kLlamaFlags) + "--window-size (63,0)");
  EXPECT_EQ(mistral["model_type"], "mistral");
  EXPECT_EQ(mistral["sliding_window"], 64) << "itself and 63 before";
  EXPECT_EQ(Model("--swiglu --normalization RMSNorm --disable-bias-linear "
                  "--use-rotary-position-embeddings")["model_type"],
            "llama");
}

TEST(MegatronModelTest, QueryGroupsAreOneWhereOnlyAskedFor) {
  EXPECT_EQ(Model(kLlamaFlags)["num_key_value_heads"], 32);
  EXPECT_EQ(Model(std::string(kLlamaFlags) + "--group-query-attention")["num_key_value_heads"], 1);
  EXPECT_EQ(Model(std::string(kLlamaFlags) + "--num-query-groups 8")["num_key_value_heads"], 32);
}

TEST(MegatronModelTest, RopeIsScaledAsMegatronDoes) {
  const auto rope = [](const std::string& flags) {
    return Model(kLlamaFlags + flags).value("rope_scaling", nlohmann::json());
  };
  EXPECT_EQ(rope("--use-rope-scaling")["rope_type"], "llama3");
  EXPECT_EQ(rope("--use-rope-scaling")["factor"], 8);
  EXPECT_EQ(rope("--use-rope-scaling --rope-scaling-factor 32")["factor"], 32);
  EXPECT_EQ(rope("--rotary-seq-len-interpolation-factor 4"),
            nlohmann::json({{"rope_type", "linear"}, {"factor", 4}}));
  EXPECT_THAT(rope(""), testing::Eq(nullptr));
  EXPECT_EQ(Model(std::string(kLlamaFlags) + "--rotary-percent 1.00").count("rope_scaling"), 0);
}

// None of these may become another model in silence.
TEST(MegatronModelTest, WhatNoFamilyIsIsRefusedByFlag) {
  EXPECT_THAT(
      Refusal("--position-embedding-type rope --rotary-base 500000"),
      AllOf(HasSubstr("LayerNorm, GELU and rotary positions"), HasSubstr("import with --model")));
  const std::string llama = kLlamaFlags;
  for (const char* flags : {"--rotary-percent 0.5",
                            "--rotary-interleaved",
                            "--no-rope-freq 4",
                            "--softmax-type off-by-one",
                            "--multi-latent-attention",
                            "--num-experts 8",
                            "--apply-residual-connection-post-layernorm",
                            "--squared-relu",
                            "--quick-geglu",
                            "--position-embedding-type none",
                            "--position-embedding-type mrope",
                            "--window-attn-skip-freq 2",
                            "--spec local my_spec",
                            "--retro-add-retriever",
                            "--hybrid-override-pattern M-M*-",
                            "--window-size nonsense",
                            "--hybrid-layer-pattern M-M*-",
                            "--experimental-attention-variant gated_delta_net",
                            "--linear-attention-type gated_delta_net",
                            "--linear-attention-freq 4",
                            "--attention-output-gate",
                            "--head-wise-attn-gate",
                            "--qk-clip",
                            "--rotary-base-per-layer 10000 500000",
                            "--rope-type yarn",
                            "--enable-hyper-connections",
                            "--use-mup",
                            "--decoder-num-layers 4"}) {
    const std::string word(flags);
    EXPECT_THAT(Refusal(llama + word), HasSubstr(word.substr(0, word.find(' ')))) << word;
  }
  EXPECT_EQ(Model(llama + "--rope-type rope")["model_type"], "llama");
  EXPECT_THAT(Refusal("--normalization RMSNorm"), HasSubstr("RMSNorm, GELU and learned"));
  EXPECT_THAT(Refusal("--swiglu"), HasSubstr("LayerNorm, SwiGLU and learned"));
  EXPECT_THAT(Refusal("--no-position-embedding"), HasSubstr("never none"));
  EXPECT_THAT(Refusal("--disable-bias-linear"), HasSubstr("--disable-bias-linear"));
  EXPECT_THAT(Refusal("--qk-layernorm"), HasSubstr("--qk-layernorm"));
  EXPECT_THAT(Refusal("--group-query-attention --num-query-groups 8"), HasSubstr("query-groups"));
  EXPECT_THAT(Refusal("--kv-channels 64"), HasSubstr("--kv-channels: got '64'"));
  EXPECT_THAT(Refusal("--no-bias-gelu-fusion"), HasSubstr("--openai-gelu"));
  EXPECT_EQ(Model("--no-bias-gelu-fusion --openai-gelu")["model_type"], "gpt2");
  EXPECT_THAT(
      std::string(ImportMegatron("--num-layers 2 --num-attention-heads 2", {}).status().message()),
      HasSubstr("--hidden-size: got nothing"));
}

TEST(MegatronModelTest, WithoutLayersNoModelIsMadeAndThatIsSaid) {
  const auto settings = ByName(Import("--swiglu --micro-batch-size 2"));
  EXPECT_EQ(settings.at("--swiglu").fate, Fate::kAbsent);
  EXPECT_THAT(settings.at("--swiglu").note, HasSubstr("--num-layers"));
}

TEST(MegatronDataTest, WeightsAreThoseOfTheMixture) {
  const auto two = ByName(Import("--data-path 0.3 a 0.7 b", {.model = "gpt2"}));
  EXPECT_EQ(two.at("--data-path").target,
            "data.train: [{path: a.idx, weight: 0.3}, {path: b.idx, weight: 0.7}]");
  EXPECT_EQ(two.count("--data-path (weights)"), 0u);
  const auto none = ByName(Import("--data-path 1 a 0 b 2 c", {.model = "gpt2"}));
  EXPECT_EQ(none.at("--data-path").target,
            "data.train: [{path: a.idx, weight: 1}, {path: c.idx, weight: 2}]");
  const auto trace = ByName(Import("--data-path 1 a 1e-6 b 2 c", {.model = "gpt2"}));
  EXPECT_EQ(trace.at("--data-path").target,
            "data.train: [{path: a.idx, weight: 1}, {path: c.idx, weight: 2}]");
  EXPECT_EQ(trace.at("--data-path (b.idx)").fate, Fate::kAbsent);
  const auto bad = ByName(Import("--data-path 1 a -2 b", {.model = "gpt2"}));
  EXPECT_EQ(bad.at("--data-path").target, "data.train: [a.idx, b.idx]");
  EXPECT_EQ(bad.at("--data-path (weights)").fate, Fate::kAbsent);
  EXPECT_EQ(ByName(Import("--data-path 1.0 a", {.model = "gpt2"})).count("--data-path (weights)"),
            0);
  EXPECT_EQ(ByName(Import("--data-path a b", {.model = "gpt2"})).count("--data-path (weights)"), 0);
  const auto split =
      ByName(Import("--train-data-path 1 a 2 b --valid-data-path 1 c", {.model = "gpt2"}));
  EXPECT_EQ(split.at("--train-data-path").target,
            "data.train: [{path: a.idx, weight: 1}, {path: b.idx, weight: 2}]");
  EXPECT_EQ(split.at("--valid-data-path").target, "data.validation: c.idx");
}

TEST(MegatronDataTest, HowDocumentsAreKeptApartIsSaid) {
  const auto settings = ByName(
      Import("--reset-attention-mask --reset-position-ids --eod-mask-loss", {.model = "gpt2"}));
  for (const auto& [flag, samples] : {std::pair("--reset-attention-mask", "data.samples: packed"),
                                      std::pair("--reset-position-ids", "data.samples: packed"),
                                      std::pair("--eod-mask-loss", "data.samples: documents")}) {
    EXPECT_EQ(settings.at(flag).fate, Fate::kAbsent) << flag;
    EXPECT_THAT(settings.at(flag).note, HasSubstr(samples)) << flag;
  }
}

TEST(MegatronTest, ContradictionsAreRefused) {
  EXPECT_THAT(Refusal("--bf16 --fp16"), HasSubstr("--bf16: got the flag beside --fp16"));
  EXPECT_THAT(Refusal("--train-samples 80"), HasSubstr("--train-iters"));
}

TEST(MegatronTest, TheStageOfFsdpIsThatOfItsStrategy) {
  for (const char* flags : {"--data-parallel-sharding-strategy optim_grads --use-megatron-fsdp",
                            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads"}) {
    EXPECT_EQ(Import(flags, {.model = "gpt2"}).Get("layout.zero"), "2") << flags;
  }
  EXPECT_EQ(Import("--use-megatron-fsdp", {.model = "gpt2"}).Get("layout.zero"), "3");
}

TEST(MegatronTest, NumbersLeftOutAreMegatrons) {
  const SpecDraft draft =
      Import("--lr 1e-4 --train-samples 1000 --global-batch-size 8", {.model = "gpt2"});
  EXPECT_EQ(draft.Get("train.steps"), "125");
  EXPECT_EQ(draft.Get("train.schedule.name"), "linear");
  EXPECT_EQ(draft.Get("train.optimizer.weight_decay"), "0.01");
  EXPECT_EQ(draft.Get("train.optimizer.betas"), "[0.9, 0.999]");
  EXPECT_THAT(draft.remarks(), testing::Contains(HasSubstr("--attention-dropout is 0.1")));
  EXPECT_THAT(draft.remarks(), testing::Contains(HasSubstr("--hidden-dropout is 0.1")));
  const SpecDraft dropping = Import(
      "--lr 1e-4 --train-samples 1000 --global-batch-size 8 --hidden-dropout 0.1 "
      "--attention-dropout 0.2",
      {.model = "gpt2"});
  EXPECT_EQ(dropping.Get("model.dropout.embedding"), "0.1");
  EXPECT_EQ(dropping.Get("model.dropout.residual"), "0.1");
  EXPECT_EQ(dropping.Get("model.dropout.attention"), "0.2");
  const auto settings =
      ByName(Import("--hidden-dropout 0.00 --attention-dropout 0.2 --optimizer adam "
                    "--train-iters 10 --lr-decay-iters 5",
                    {.model = "gpt2"}));
  EXPECT_EQ(settings.at("--hidden-dropout").fate, Fate::kMapped);
  EXPECT_EQ(settings.at("--attention-dropout").fate, Fate::kMapped);
  EXPECT_EQ(settings.at("--optimizer").fate, Fate::kAutomatic);
  EXPECT_EQ(settings.at("--lr-decay-iters").fate, Fate::kAbsent);
}

TEST(MegatronTest, OptimizersAndSchedulesHaveTheirOwnFlags) {
  const SpecDraft draft = Import(std::string(kLlama) +
                                 " --optimizer sgd --lr-decay-style WSD --lr-wsd-decay-iters 400 "
                                 "--lr-warmup-init 1e-6");
  const v1::TrainSpec train = Spec(draft).train();
  EXPECT_EQ(train.optimizer().name(), "sgd");
  EXPECT_DOUBLE_EQ(train.optimizer().momentum(), 0.9);
  EXPECT_EQ(train.schedule().name(), "wsd");
  EXPECT_EQ(train.schedule().decay(), "exponential");
  EXPECT_EQ(train.schedule().decay_steps(), 400);
  EXPECT_DOUBLE_EQ(train.schedule().initial_lr(), 1e-6);
  EXPECT_EQ(ByName(draft).at("--adam-beta1").fate, Fate::kAutomatic);
  const SpecDraft other =
      Import(std::string(kLlama) + " --sgd-momentum 0.8 --lr-decay-style inverse-square-root");
  EXPECT_EQ(ByName(other).at("--sgd-momentum").fate, Fate::kAutomatic);
  EXPECT_EQ(Spec(other).train().schedule().name(), "inverse_sqrt");
}

TEST(MegatronTest, LayersAtTheEndsStayInBf16) {
  const auto import = [](const std::string& line) { return Import(line, {.model = "gpt2"}); };
  const std::string fp8 = "--bf16 --fp8-format hybrid --first-last-layers-bf16 ";
  EXPECT_EQ(import(fp8).Get("train.precision"),
            "{default: fp8, layers: {first 1: bf16, last 1: bf16}}");
  const SpecDraft more =
      import(fp8 + "--num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 3");
  EXPECT_EQ(more.Get("train.precision"), "{default: fp8, layers: {last 3: bf16}}");
  EXPECT_EQ(ByName(more).at("--num-layers-at-end-in-bf16").fate, Fate::kAutomatic);
  EXPECT_EQ(import(fp8 + "--num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 0")
                .Get("train.precision"),
            "fp8");
  for (const char* count : {"-1", "many", ""}) {
    const std::string line = absl::StrCat(fp8, "--num-layers-at-end-in-bf16 ", count);
    EXPECT_THAT(std::string(ImportMegatron(line, {.model = "gpt2"}).status().message()),
                HasSubstr(absl::StrCat("--num-layers-at-end-in-bf16: got '", count, "'")));
  }
  const SpecDraft without = import("--bf16 --first-last-layers-bf16");
  EXPECT_EQ(without.Get("train.precision"), "bf16");
  EXPECT_THAT(ByName(without).at("--first-last-layers-bf16").note, HasSubstr("nothing is in fp8"));
}

TEST(MegatronTest, MomentsHaveOneFormat) {
  const auto import = [](const std::string& first, const std::string& second) {
    return Import("--use-precision-aware-optimizer --exp-avg-dtype " + first +
                      " --exp-avg-sq-dtype " + second,
                  {.model = "gpt2"});
  };
  EXPECT_EQ(import("bf16", "bf16").Get("formats.moments"), "bf16");
  EXPECT_EQ(import("fp32", "fp32").Get("formats.moments"), "f32");
  const SpecDraft fp8 = import("fp8", "fp8");
  EXPECT_EQ(fp8.Get("formats.moments"), "int8");
  EXPECT_THAT(ByName(fp8).at("--exp-avg-dtype").note, HasSubstr("int8 blocks"));
  EXPECT_EQ(ByName(fp8).at("--use-precision-aware-optimizer").fate, Fate::kAutomatic);
  for (const auto& [draft, note] : {std::pair(import("bf16", "fp32"), "both moments have one"),
                                    std::pair(import("fp16", "fp16"), "the range of fp16")}) {
    EXPECT_FALSE(draft.Has("formats.moments"));
    EXPECT_EQ(ByName(draft).at("--exp-avg-dtype").fate, Fate::kAbsent);
    EXPECT_THAT(ByName(draft).at("--exp-avg-sq-dtype").note, HasSubstr(note));
  }
}

// Text from outside is one value, whatever YAML would make of it.
TEST(MegatronTest, ValuesThatYamlWouldReadOtherwiseStayWhatTheyAre) {
  for (const char* value : {"[", "{a: [b", "*a", "&a", "@x", "`x`", "a: b", "# x", "| x", "null",
                            "~", "- a", "!x", "%x", "a, b", "\x1b[31m"}) {
    SCOPED_TRACE(value);
    const std::string quoted = absl::StrCat(" '", value, "' ");
    const SpecDraft draft =
        Import(absl::StrCat("--save", quoted, "--tokenizer-model", quoted, "--data-path 1", quoted,
                            "2 /y", " --bogus", quoted));
    const YAML::Node yaml = YAML::Load(draft.Yaml());
    EXPECT_EQ(yaml["checkpoint"]["directory"].as<std::string>(), value);
    EXPECT_EQ(yaml["data"]["tokenizer"].as<std::string>(), value);
    EXPECT_EQ(yaml["data"]["train"][0]["path"].as<std::string>(), absl::StrCat(value, ".idx"));
    EXPECT_EQ(yaml["data"]["train"].size(), 2u);
    for (const std::string& text : {ImportText(draft, {}), ImportJson(draft, {})}) {
      EXPECT_EQ(text.find('\x1b'), std::string::npos);
    }
    const SpecDraft number = Import(absl::StrCat("--lr", quoted, "--adam-beta1", quoted));
    EXPECT_EQ(YAML::Load(number.Yaml())["train"]["optimizer"]["lr"].as<std::string>(), value);
    EXPECT_FALSE(ParseJobSpec(number.Yaml(), "/tmp").ok());
  }
}

TEST(MegatronTest, BytesThatAreNoTextAreRefusedAndLongTextIsCutBetweenCharacters) {
  EXPECT_THAT(
      ImportMegatron("--lr 1\n--save caf\xe9", {}).status().message(),
      AllOf(HasSubstr("line 2, column 11"), HasSubstr("\\xe9"), HasSubstr("must be UTF-8")));
  std::string smiles;
  for (int i = 0; i < 2000; ++i) smiles += "\xf0\x9f\x98\x80";
  for (const char* flag : {"--save ", "--bogus ", "--lr "}) {
    const SpecDraft draft = Import(flag + smiles);
    EXPECT_TRUE(CheckUtf8("text", ImportText(draft, {})).ok());
    EXPECT_TRUE(nlohmann::json::accept(ImportJson(draft, {})));
  }
  EXPECT_LT(ImportMegatron("--num-layers 2 --num-attention-heads 2 --hidden-size " + smiles, {})
                .status()
                .message()
                .size(),
            300u);
}

// As people have them.
TEST(MegatronTest, AScriptIsReadWithItsArraysAndVariables) {
  const v1::JobSpec spec = Spec(Import(R"(
TP=2
MODEL_ARGS=(
   --swiglu
   --num-layers 16
   --hidden-size 2048
   --ffn-hidden-size 8192   # inner
   --num-attention-heads 32
   --group-query-attention
   --num-query-groups 8
   --use-rotary-position-embeddings
   --disable-bias-linear
   --normalization "RMSNorm"
   --vocab-size 128256
   --kv-channels 64
)
TRAINING_ARGS="
    --micro-batch-size 1 \
    --global-batch-size ${BATCH:-64}
    --train-iters 100 --lr 1e-4 --bf16
"
torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} $TRAINING_ARGS \
    --tensor-model-parallel-size $TP --seq-length 2048 2>&1 | tee log.txt
)"));
  EXPECT_EQ(spec.train().global_batch(), 64);
  EXPECT_EQ(spec.layout().tp(), 2u);
  EXPECT_EQ(spec.resources().devices_per_node(), 8u);
  EXPECT_THAT(spec.model().config_json(), HasSubstr("\"head_dim\": 64"));
}

TEST(MegatronTest, StagesOfUnequalLengthAreKept) {
  const std::string stages = absl::StrCat(
      "--num-layers 28 --hidden-size 256 --num-attention-heads 4 --pipeline-model-parallel-size 4 ",
      "--decoder-first-pipeline-num-layers ");
  const v1::JobSpec both =
      Spec(Import(stages + "5 --decoder-last-pipeline-num-layers 3", {.model = "gpt2"}));
  EXPECT_THAT(both.layout().stage_layers(), testing::ElementsAre(5, 10, 10, 3));
  EXPECT_THAT(Spec(Import(stages + "4", {.model = "gpt2"})).layout().stage_layers(),
              testing::ElementsAre(4, 8, 8, 8));
  const auto uneven = ByName(Import(stages + "5", {.model = "gpt2"}));
  EXPECT_EQ(uneven.at("--decoder-first-pipeline-num-layers").fate, Fate::kAbsent);
}

TEST(MegatronTest, OldNamesAreRefusedWithTheNewOnes) {
  const auto error = [](std::string_view flags) {
    return std::string(ImportMegatron(flags, {}).status().message());
  };
  EXPECT_THAT(error("--batch-size 8"), HasSubstr("--batch-size: got the flag, must be --micro"));
  EXPECT_THAT(error("--model-parallel-size 8"), HasSubstr("--tensor-model-parallel-size"));
  EXPECT_THAT(error("--yaml-cfg a.yaml"), HasSubstr("which is not read"));
}

TEST(MegatronTest, TheOtherNameOfTheLengthIsRead) {
  const v1::JobSpec spec = Spec(
      Import("--num-layers 2 --hidden-size 256 --num-attention-heads 4 --encoder-seq-length 2048 "
             "--max-position-embeddings 4096"));
  EXPECT_EQ(spec.data().sequence_length(), 2048);
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
