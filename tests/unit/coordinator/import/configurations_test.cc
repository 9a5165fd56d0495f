// Configurations as people have them: each becomes a job spec that validates, with what it says in
// the keys of the spec.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "coordinator/import/deepspeed.h"
#include "coordinator/import/megatron/megatron.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kZero1[] =
    R"({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8, "steps_per_print": 10,
 "gradient_clipping": 1.0, "prescale_gradients": false, "wall_clock_breakdown": false, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8, "overlap_comm": true, "contiguous_gradients": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-4, "warmup_num_steps": 500, "total_num_steps": 10000}}})";

constexpr char kZero2Auto[] =
    R"({"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
 "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
 "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "allgather_partitions": true, "allgather_bucket_size": 2e8,
  "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 2e8, "contiguous_gradients": true},
 "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false})";

constexpr char kZero3Host[] =
    R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "offload_param": {"device": "cpu", "pin_memory": true},
 "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
 "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true},
 "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16, "gradient_clipping": 1.0})";

constexpr char kZero3Nvme[] =
    R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": true, "loss_scale": 0}, "zero_allow_untested_optimizer": true,
 "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 4, "fast_init": false, "pipeline_read": true, "pipeline_write": true},
 "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9},
 "stage3_param_persistence_threshold": 1e5},
 "aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 1, "single_submit": false, "overlap_events": true}})";

constexpr char kCheckpointing[] =
    R"({"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.0001, "torch_adam": true, "adam_w_mode": true}},
 "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true, "contiguous_memory_optimization": false, "number_checkpoints": 24, "synchronize_checkpoint_boundary": false, "profile": false},
 "zero_optimization": {"stage": 2, "cpu_offload": false}, "tensorboard": {"enabled": true, "output_path": "runs"}, "flops_profiler": {"enabled": false}, "communication_data_type": "fp16"})";

constexpr char kUnknownKeys[] =
    R"({"train_batch_size": 32, "fp16": {"enabled": false}, "bf16": {"enabled": true}, "zero_optimisation": {"stage": 3}, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": true, "dynamic_granularity": true, "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", "ratio": 0.3}},
 "moe": {"enabled": true}, "elasticity": {"enabled": true, "max_train_batch_size": 2000}, "optimizer": {"type": "OneBitAdam", "params": {"lr": 2e-4, "freeze_step": 400}}, "checkpoint": {"tag_validation": "Warn"}})";

constexpr char kLlama70B[] = R"(
torchrun --nproc_per_node 8 --nnodes 16 --node_rank $RANK --master_addr $MASTER_ADDR --master_port
6000 pretrain_gpt.py  --use-mcore-models --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672
--num-attention-heads 64 --group-query-attention --num-query-groups 8  --kv-channels 128
--seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 500000
--rotary-percent 1.0  --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --init-method-std 0.0134
--attention-backend fused --apply-layernorm-1p --untie-embeddings-and-output-weights
--disable-bias-linear  --normalization RMSNorm --norm-epsilon 1e-5 --vocab-size 128256
--make-vocab-size-divisible-by 128 --micro-batch-size 1 --global-batch-size 1024 --train-iters
100000 --lr 1.5e-4 --min-lr 1.5e-5 --lr-decay-style cosine --lr-warmup-iters 2000  --weight-decay
0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 --bf16 --grad-reduce-in-bf16
--cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc --empty-unused-memory-level 1
--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4
--num-layers-per-virtual-pipeline-stage 5 --sequence-parallel --use-distributed-optimizer
--overlap-grad-reduce --overlap-param-gather  --tokenizer-type NullTokenizer --data-path
/data/my_text_document --split 99,1,0 --save /ckpt --save-interval 500 --eval-interval 100
--eval-iters 32 --log-interval 1
)";

constexpr char kGpt175B[] = R"(
--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048
--max-position-embeddings 2048 --attention-backend auto --micro-batch-size 1 --global-batch-size
1536 --rampup-batch-size 16 16 5859375 --train-iters 500000 --weight-decay 0.1 --adam-beta1 0.9
--adam-beta2 0.95 --init-method-std 0.006 --clip-grad 1.0 --fp16 --lr 6.0e-5 --lr-decay-style cosine
--min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 430000 --tensor-model-parallel-size 8
--pipeline-model-parallel-size 16 --data-path /data/gpt_text_document --vocab-file gpt2-vocab.json
--merge-file gpt2-merges.txt --split 949,50,1 --log-interval 100 --save-interval 10000
--eval-interval 1000 --save /ckpt --load /ckpt --eval-iters 10 --tensorboard-dir logs
--initial-loss-scale 4294967296 --loss-scale-window 500 --hysteresis 3 --min-loss-scale 0.5
)";

constexpr char kGpt345M[] = R"(
--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024
--max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 16 --lr 0.00015
--train-iters 500000 --lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay
1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 --fp16 --recompute-activations --data-path 0.7
a_text_document 0.3 b_text_document --vocab-size 50257
)";

constexpr char kQwen7B[] = R"(
--tensor-model-parallel-size=2 --context-parallel-size=2 --cp-comm-type a2a --num-layers 28
--hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 --group-query-attention
--num-query-groups 4 --swiglu --normalization RMSNorm --add-qkv-bias
--untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 1000000
--vocab-size 152064 --seq-length 32768 --max-position-embeddings 32768 --micro-batch-size 1
--global-batch-size 64 --train-iters 1000 --lr 1e-5 --bf16 --recompute-granularity full
--recompute-method uniform --recompute-num-layers 1 --optimizer-cpu-offload
--optimizer-offload-fraction 0.5 --use-precision-aware-optimizer --tokenizer-type
HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-7B --fp8-format hybrid --no-such-flag 3
)";

const ImportContext kContext = {.nodes = 1, .devices_per_node = 8};

v1::JobSpec SpecOf(const absl::StatusOr<SpecDraft>& draft) {
  EXPECT_TRUE(draft.ok()) << draft.status();
  if (!draft.ok()) return {};
  const auto spec = ParseJobSpec(draft->Yaml(), "/tmp");
  EXPECT_TRUE(spec.ok()) << spec.status() << "\n" << draft->Yaml();
  return spec.ok() ? *spec : v1::JobSpec();
}
std::set<std::string> Unknown(const absl::StatusOr<SpecDraft>& draft) {
  std::set<std::string> unknown;
  for (const ImportedSetting& setting : draft->settings()) {
    if (setting.fate == Fate::kUnknown) unknown.insert(setting.setting);
  }
  return unknown;
}

TEST(DeepSpeedConfigurationTest, Zero1InBf16) {
  const auto draft = ImportDeepSpeed(kZero1, kContext);
  const v1::JobSpec spec = SpecOf(draft);
  EXPECT_EQ(spec.layout().zero(), 1);
  EXPECT_EQ(spec.layout().micro_batch(), 4u);
  EXPECT_EQ(spec.train().global_batch(), 256);
  EXPECT_EQ(spec.train().steps(), 10000);
  EXPECT_EQ(spec.train().precision(), "bf16");
  EXPECT_EQ(spec.train().schedule().warmup_steps(), 500);
  EXPECT_THAT(Unknown(draft), IsEmpty());
}

TEST(DeepSpeedConfigurationTest, Zero2OfTheTrainerWithItsAutos) {
  const auto draft = ImportDeepSpeed(kZero2Auto, kContext);
  const v1::JobSpec spec = SpecOf(draft);
  EXPECT_EQ(spec.layout().zero(), 2);
  EXPECT_EQ(spec.layout().offload().optimizer().host(), 1);
  EXPECT_EQ(spec.layout().offload().parameter().host(), 0);
  EXPECT_THAT(Unknown(draft), IsEmpty());
}

TEST(DeepSpeedConfigurationTest, Zero3OnTheHost) {
  const auto draft = ImportDeepSpeed(kZero3Host, kContext);
  const v1::JobSpec spec = SpecOf(draft);
  EXPECT_EQ(spec.layout().zero(), 3);
  EXPECT_EQ(spec.layout().offload().parameter().host(), 1);
  EXPECT_EQ(spec.layout().offload().optimizer().host(), 1);
  EXPECT_EQ(spec.train().global_batch(), 1 * 16 * 8);
  EXPECT_THAT(Unknown(draft), IsEmpty());
}

TEST(DeepSpeedConfigurationTest, Zero3OnNvme) {
  const auto draft = ImportDeepSpeed(kZero3Nvme, kContext);
  const v1::JobSpec spec = SpecOf(draft);
  EXPECT_EQ(spec.layout().offload().parameter().nvme(), 1);
  EXPECT_EQ(spec.layout().offload().optimizer().nvme(), 1);
  EXPECT_THAT(spec.resources().nvme().paths(), ElementsAre("/local_nvme"));
  EXPECT_EQ(spec.resources().nvme().queue_depth(), 8u);
  EXPECT_EQ(spec.train().precision(), "fp16");
  EXPECT_EQ(spec.train().loss_scale().fixed(), 0);
  EXPECT_THAT(Unknown(draft), IsEmpty());
}

TEST(DeepSpeedConfigurationTest, RulesOfADynamicScaleBesideAFixedOne) {
  const auto draft = ImportDeepSpeed(
      R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 128, "initial_scale_power": 16,
          "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}})",
      kContext);
  EXPECT_EQ(SpecOf(draft).train().loss_scale().fixed(), 128);
  EXPECT_FALSE(draft->Has("train.loss_scale.initial"));
  EXPECT_FALSE(draft->Has("train.loss_scale.min"));
  EXPECT_THAT(draft->remarks(), Contains(HasSubstr("no initial, window, hysteresis, min")));
}

TEST(DeepSpeedConfigurationTest, ActivationCheckpointing) {
  const auto draft = ImportDeepSpeed(kCheckpointing, kContext);
  const v1::JobSpec spec = SpecOf(draft);
  EXPECT_EQ(spec.layout().recompute(), "block");
  EXPECT_EQ(spec.layout().offload().activation().host(), 1);
  EXPECT_EQ(spec.layout().offload().optimizer().host(), 0);
  EXPECT_EQ(spec.train().global_batch(), 64);
  EXPECT_EQ(spec.train().precision(), "fp32");
  EXPECT_EQ(spec.formats().reduce(), "f32") << "as those of fp32 training are";
  EXPECT_THAT(Unknown(draft), IsEmpty());
}

TEST(DeepSpeedConfigurationTest, KeysThatAreNoneAreNamed) {
  const auto draft = ImportDeepSpeed(kUnknownKeys, kContext);
  const v1::JobSpec spec = SpecOf(draft);
  EXPECT_EQ(spec.layout().zero(), 3);
  EXPECT_EQ(spec.layout().shard_size(), 8u);
  EXPECT_DOUBLE_EQ(spec.layout().offload().optimizer().nvme(), 0.3);
  EXPECT_THAT(Unknown(draft), testing::IsSupersetOf({"zero_optimisation.stage",
                                                     "zero_optimization.dynamic_granularity"}));
}

std::string Refusal(const std::string& json) {
  const auto draft = ImportDeepSpeed(json, kContext);
  EXPECT_FALSE(draft.ok()) << json;
  return std::string(draft.status().message());
}

TEST(DeepSpeedConfigurationTest, WhatCannotBeIsRefusedByKey) {
  EXPECT_THAT(Refusal(R"({"zero_optimization": {"offload_optimizer": {"device": "disk"}}})"),
              HasSubstr("zero_optimization.offload_optimizer.device: got \"disk\", must be"));
  EXPECT_THAT(Refusal(R"({"train_batch_size": 32, "train_batch_size": 64})"),
              HasSubstr("train_batch_size: got the key twice"));
  EXPECT_THAT(Refusal(R"({"zero_optimization": {"stage": 1, "stage": 2}})"),
              HasSubstr("stage: got the key twice"));
  EXPECT_THAT(Refusal(R"({"train_batch_size": 32,,})"), HasSubstr("line 1, column"));
  EXPECT_THAT(Refusal(R"({"train_batch_size": -32})"), HasSubstr("must be a whole number from 1"));
  EXPECT_THAT(Refusal(R"({"train_micro_batch_size_per_gpu": 1e300})"), HasSubstr("1000000"));
  EXPECT_THAT(Refusal(R"({"train_micro_batch_size_per_gpu": 18446744073709551615})"),
              HasSubstr("1000000"));
  EXPECT_THAT(Refusal(R"({"train_batch_size": 31, "train_micro_batch_size_per_gpu": 4,
                          "gradient_accumulation_steps": 1})"),
              HasSubstr("train_batch_size: got 31, must be"));
  EXPECT_THAT(Refusal("[1]"), HasSubstr("begins with '{'"));
  EXPECT_THAT(Refusal(std::string(100000, '[')), testing::Not(IsEmpty()));
}

// A key may stand in two objects; the same word twice in one may not.
TEST(DeepSpeedConfigurationTest, TheSameWordInTwoSectionsIsNoDuplicate) {
  EXPECT_TRUE(
      ImportDeepSpeed(R"({"bf16": {"enabled": true}, "fp16": {"enabled": false}})", kContext).ok());
}

TEST(DeepSpeedConfigurationTest, RanksThatCutTensorsAreNoDataParallelRanks) {
  const auto draft = ImportDeepSpeed(
      R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
          "gradient_accumulation_steps": 1, "tensor_parallel": {"autotp_size": 2}})",
      kContext);
  EXPECT_EQ(SpecOf(draft).layout().tp(), 2u);
}

TEST(MegatronConfigurationTest, Llama70BWithItsLauncher) {
  const auto draft = ImportMegatron(kLlama70B, {});
  const v1::JobSpec spec = SpecOf(draft);
  EXPECT_EQ(spec.resources().nodes_max(), 16u);
  EXPECT_EQ(spec.resources().devices_per_node(), 8u);
  EXPECT_EQ(spec.layout().tp(), 8u);
  EXPECT_EQ(spec.layout().pp(), 4u);
  EXPECT_EQ(spec.layout().interleave(), 4u);
  EXPECT_EQ(spec.layout().zero(), 1);
  EXPECT_EQ(spec.train().global_batch(), 1024);
  EXPECT_THAT(spec.model().config_json(), HasSubstr("\"num_key_value_heads\": 8"));
  EXPECT_THAT(Unknown(draft), IsEmpty());
}

TEST(MegatronConfigurationTest, Gpt3Of175B) {
  const auto draft = ImportMegatron(kGpt175B, {});
  const v1::JobSpec spec = SpecOf(draft);
  EXPECT_EQ(spec.layout().pp(), 16u);
  EXPECT_EQ(spec.resources().nodes_max(), 16u);
  EXPECT_EQ(spec.train().schedule().warmup_steps(), 430) << "0.001 of lr-decay-iters";
  EXPECT_EQ(spec.train().precision(), "fp16");
  EXPECT_EQ(spec.train().loss_scale().initial(), 4294967296);
  EXPECT_EQ(spec.train().loss_scale().window(), 500);
  EXPECT_EQ(spec.train().loss_scale().hysteresis(), 3);
  EXPECT_EQ(spec.train().loss_scale().min(), 0.5);
  EXPECT_THAT(spec.model().config_json(), HasSubstr("\"n_embd\": 12288"));
  EXPECT_THAT(Unknown(draft), IsEmpty());
}

TEST(MegatronConfigurationTest, Gpt2Of345MOnOneDevice) {
  const auto draft = ImportMegatron(kGpt345M, {});
  const v1::JobSpec spec = SpecOf(draft);
  EXPECT_EQ(spec.train().schedule().warmup_steps(), 3200);
  EXPECT_EQ(spec.layout().recompute(), "selective");
  EXPECT_EQ(spec.data().train_size(), 2);
  EXPECT_THAT(Unknown(draft), IsEmpty());
}

TEST(MegatronConfigurationTest, Qwen7BWithContextParallelRanks) {
  const auto draft = ImportMegatron(kQwen7B, {});
  const v1::JobSpec spec = SpecOf(draft);
  EXPECT_EQ(spec.layout().cp(), 2u);
  EXPECT_EQ(spec.layout().context_type(), "ulysses");
  EXPECT_DOUBLE_EQ(spec.layout().offload().optimizer().host(), 0.5);
  EXPECT_EQ(spec.layout().recompute(), "block");
  EXPECT_EQ(spec.train().precision(), "fp8") << "--fp8-format, over --bf16";
  EXPECT_THAT(Unknown(draft), ElementsAre("--no-such-flag"));
}

TEST(MegatronConfigurationTest, NumbersThatAreNoneAreRefusedByFlag) {
  const auto refusal = [](const char* flags) {
    const auto draft = ImportMegatron(flags, {});
    EXPECT_FALSE(draft.ok()) << flags;
    return std::string(draft.status().message());
  };
  EXPECT_THAT(refusal("--num-layers two --hidden-size 8"), HasSubstr("--num-layers: got 'two'"));
  EXPECT_THAT(refusal("--num-layers 2 --hidden-size 99999999999999"), HasSubstr("--hidden-size"));
  EXPECT_THAT(refusal("--num-layers 2 --hidden-size 8 --num-attention-heads 2 --rotary-base nan"),
              HasSubstr("--rotary-base: got 'nan', must be a number"));
  EXPECT_THAT(refusal("pretrain_gpt.py"), HasSubstr("no flags"));
}

}  // namespace
}  // namespace terrace
