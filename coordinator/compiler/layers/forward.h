// The forward pass of one micro-batch over some layers, for all families: embedding, layers
// (attention, MLP), final norm, and what follows.
//
// Appends nodes through a Builder; the values they write are the activations that the backward pass
// may need. The same code builds all sequences.
//
// Tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053): each block begins with
// EnterTensorParallel and ends with a sum over the ranks. With sequence parallelism (Korthikanti et
// al. 2022, arXiv 2205.05198) norms and residuals hold 1/tp of the tokens; the block begins with an
// all-gather and ends with a reduce-scatter. Context parallelism: a rank holds 1/cp of the tokens
// of each sequence; keys and values go round the ranks (ring attention, Liu et al. 2023, arXiv
// 2310.01889, zig-zag split) or tokens are exchanged for heads (Ulysses, Jacobs et al. 2023, arXiv
// 2309.14509). Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/compiler/graph/builder.h"
#include "coordinator/compiler/state/parameter_gradients.h"
#include "coordinator/compiler/state/precision.h"
#include "coordinator/compiler/state/weights.h"

namespace terrace::compiler {

// Values with the cosines and sines of rotary angles; kNone where no layer here has such angles.
struct RopeTables {
  int rope = kNone;
  int local = kNone;  // of ModelConfig.local_rope
};

// A program that generates keeps these of the tokens that a sequence already has.
struct KeptTokens {
  int64_t max_length = 0;         // tokens that there is room for in each sequence
  std::vector<int> keys, values;  // by layer: values [batch,max_length,kv_heads,d]
};

struct ForwardOptions {
  int64_t batch = 0;     // sequences
  int64_t sequence = 0;  // tokens of each, over all context-parallel ranks
  Precisions precisions;
  bool for_backward = false;  // keep the values before activations
  kernels::LossTerms terms;
  RopeTables rope_tables;
  int64_t chunk_bytes = 0;  // of one copy between tiers; 0: the default
  uint64_t dropout_seed = 0;
  bool documents = false;  // a sequence of a batch holds several (data.samples: packed)
  // It is set for a pass over new tokens, at most `sequence` of each sequence; else null.
  const KeptTokens* kept = nullptr;
  // Each two sequences are a pair, whose loss also asks what the model says of them without its
  // adapters (train.preference).
  std::optional<kernels::PreferenceAttrs> preference;
};

// What a pass has of its micro-batch.
struct BatchSlices {
  Slice tokens;    // absent where the stage does not embed
  Slice targets;   // absent where it does not compute the loss
  Slice places;    // of each token, for dropout; absent where nothing is dropped
  Slice starts;    // of each token's document; absent where a sequence is one
  Slice stats;     // where the loss goes
  Slice margins;   // of pairs, where their margins go
  Slice weights;   // of pairs: how often each token's loss counts in the gradients (PairLoss)
  Slice schedule;  // of LOAD_SCHEDULE: the loss's gradient is multiplied by its factor; or absent
};

class Forward {
 public:
  // Everything is borrowed. `keeps_weights`: what is prefetched to the device for one micro-batch
  // is there for the next ones as well; else each layer prefetches its own.
  Forward(const Model& model, const Parameters& parameters, const Parallel& parallel,
          const ForwardOptions& options, bool keeps_weights, Builder* builder)
      : config_(model.config),
        parameters_(parameters),
        parallel_(parallel),
        options_(options),
        builder_(*builder),
        keeps_weights_(keeps_weights),
        weights_(parameters, parallel, options.chunk_bytes, builder) {}

  // Rows of the residual stream on this rank.
  int64_t residual_rows() const;
  // An activation like the residual stream: [residual_rows, hidden].
  Slice NewResidual(const std::string& name) {
    return Activation(name, residual_rows(), config_.hidden);
  }

  // From here on elements are dropped by the bits of these tokens; absent: none are.
  void SetPlaces(Slice places) { places_ = places; }
  // From here on sequences hold the documents that start there; absent: one each.
  void SetStarts(Slice starts) { starts_ = starts; }
  // With options.kept: the position of each row, and the spans of attention_cached.
  void SetNewTokens(Slice positions, Slice spans);

  // tokens [T] -> the residual stream before the first layer.
  Slice Embedding(Slice tokens);
  Slice Layer(int layer, Slice x);
  // The residual stream after the last layer -> what the LM head multiplies, [rows of x or T, h].
  Slice Hidden(Slice x);

  // The same of the model without its adapters, which drops nothing: the reference of preferences.
  // It is computed beside the other pass, layer by layer, with the weights that the layer's other
  // pass has brought to the device, and is not recorded: nothing goes back through it. `x` of the
  // embedding: what the other pass has made of the tokens.
  Slice ReferenceEmbedding(Slice tokens, Slice x);
  Slice ReferenceLayer(int layer, Slice x);
  Slice ReferenceHidden(Slice x);

  // stats[2] = {sum of losses, counted targets} of hidden [T,h].
  void Loss(Slice hidden, Slice targets, Slice stats) { Loss(hidden, targets, stats, {}); }
  // The loss and margins of pairs, from both passes' hidden states. Returns the weights with which
  // the losses of tokens count. REQUIRES: options.preference.
  Slice PairLoss(Slice hidden, Slice reference, const BatchSlices& batch);
  // As Loss, with the gradients of the sum of losses: returns that of hidden, partial over the
  // tensor-parallel ranks; that of the weight goes to `gradients`.
  // With a schedule both are multiplied by its factor, and with weights each token's by its weight;
  // then the loss is known already, and batch.stats is not written.
  Slice LossAndGradient(Slice hidden, const BatchSlices& batch, ParameterGradients* gradients);
  // hidden [n,h] -> logits [n,V] f32. REQUIRES: one tensor-parallel rank.
  Slice Logits(Slice hidden);

 private:
  struct Heads {
    Slice q, k, v;  // [T,heads,d]
  };
  struct LinearOptions {
    Slice residual;
    Slice aux;
    kernels::Epilogue epilogue = kernels::Epilogue::kNone;
    bool transpose = false;  // the weight is stored [out,in]
    bool accumulate = false;
  };

  // The values of a layer, or of the model, that elements are dropped of. The numbers are part of
  // the random bits: they never change.
  enum class DropoutSite : uint32_t {
    kEmbedding = 1,
    kAttentionOut = 2,
    kMlpOut = 3,
    kAdapterOfAttention = 4,
    kAdapterOfAttentionOut = 5,
    kAdapterOfMlp = 6,
    kAdapterOfMlpDown = 7,
    kScores = 8,
  };

  // forward_dropout.cc
  bool Drops(double probability) const {
    return probability > 0 && !places_.absent() && !is_reference_;
  }
  uint32_t NumberOf(DropoutSite site) const;
  // x where nothing is dropped. `split`: each tensor-parallel rank has other columns of x.
  Slice Drop(Slice x, double probability, DropoutSite site, bool split, const std::string& name);
  // The site of what the adapters of a product by `weight` read: that of all that read the same.
  static DropoutSite SiteOf(TensorRole weight);
  // The residual and what a block's last product gave on each rank: summed, with the bias, normed
  // where norms come after, multiplied, and with elements dropped.
  Slice AddChanged(Slice product, Slice residual, TensorRole weight, Slice bias,
                   const std::string& name);

  // forward.cc
  Slice Weight(TensorRole role) { return weights_.Of(role, builder_.layer); }
  void ForgetWeights() {
    if (!keeps_weights_) weights_.Forget();
  }
  // A layer, or the head, begins; the reference's shares what the other pass has.
  void Begin() {
    if (is_reference_) return;
    builder_.Mark();
    ForgetWeights();
  }
  template <typename F>
  Slice AsReference(F append) {
    is_reference_ = true;
    builder_.variant = "reference";
    std::vector<Node>* const record = std::exchange(builder_.record, nullptr);
    const Slice made = append();
    builder_.record = record;
    builder_.variant.clear();
    is_reference_ = false;
    return made;
  }
  Slice Activation(const std::string& name, int64_t rows, int64_t columns);
  Slice Statistic(const std::string& name, const Dims& dims);
  int64_t tokens() const { return options_.batch * local_sequence(); }
  int64_t local_sequence() const { return options_.sequence / parallel_.context(); }
  // Tables by position have a row for each row of a pass over new tokens.
  int64_t table_sequence() const { return options_.kept != nullptr ? tokens() : local_sequence(); }
  Slice AtPositions(Slice table, const std::string& name);
  Slice AnglesOf(int rope_table);
  kernels::TokenShare share() const;
  Slice Norm(Slice x, TensorRole weight, TensorRole bias, const std::string& name);
  // Returns what the first product of a block reads of the residual stream.
  Slice Entered(Slice x, TensorRole weight, TensorRole bias, const std::string& name);
  void RmsNorm(Slice x, Slice weight, Slice y, const std::string& name);
  void Linear(Slice x, Slice weight, Slice bias, Slice y, kernels::MatmulPrecision precision,
              const LinearOptions& options, const std::string& name);
  // The same by a weight that may be in tiles, in the precision of its role in this layer; with the
  // adapters of the layers that it computes.
  void Product(Slice x, TensorRole weight, Slice bias, Slice y, const LinearOptions& options,
               const std::string& name);
  // forward_lora.cc
  bool HasAdapter(TensorRole weight) const;
  // y += scale B (A x), for each layer that a product by `weight` computes.
  void Adapt(Slice x, TensorRole weight, Slice y, const std::string& name);
  int64_t Outputs(TensorRole weight) const;
  // As the config says the family's weights are stored.
  LinearOptions Stored() const { return {.transpose = !config_.conv1d_weights}; }
  Slice EnterRegion(Slice x, const std::string& name);
  Slice LeaveRegion(Slice partial, const std::string& name);
  // A sum over the ranks moves to memory of its own only where each rank keeps a part of it.
  std::string BeforeSum(const std::string& name) const;
  Slice RowProduct(Slice x, Slice residual, TensorRole weight, TensorRole bias,
                   const std::string& name);
  // x times a number that the config has, in place.
  void Multiply(Slice x, double by, const std::string& name);
  // The MLP of x, added to `residual`.
  Slice Mlp(Slice x, Slice residual);
  kernels::ActivationAttrs Activates() const;
  Slice PlainMlp(Slice x);
  Slice GatedMlp(Slice x);

  // forward_attention.cc
  // Attention over what x's rows hold, added to `residual`.
  Slice Attention(Slice x, Slice residual);
  Slice QkvProduct(Slice x);
  Slice HeadsApart(Slice qkv);
  Slice GroupsApart(Slice qkv);
  Slice HeadNorms(Slice qkv);
  int RopeTable() const;
  Slice HalvesApart(Slice qk);
  void Rotate(Slice qk, int table);
  Heads SplitHeads(Slice qk, Slice v) const;
  Slice AttentionOver(const Heads& heads);
  Slice RingOver(const Heads& heads);
  Slice CachedOver(const Heads& heads);
  Slice UlyssesOver(const Heads& heads);
  Slice HeadsForTokens(Slice x, const std::string& name);
  Slice TokensForHeads(Slice x, const std::string& name);
  Slice Exchange(Slice x, const std::string& name);
  Slice Permute(Slice x, const Dims& to, const std::string& name);
  Slice DenseCopy(Slice x, const std::string& name);
  int64_t Window() const;
  float Scale() const;
  kernels::ScoreTerms Terms() const;
  Slice PlacesOfScores() const { return Drops(config_.dropout.attention) ? places_ : Slice(); }

  // forward_head.cc
  Slice HeadWeight();
  std::vector<int> HeadTiles() const;
  void ForgetTiles();
  bool LogitsInMemory() const;
  // Those of training, and what the model does with its logits.
  kernels::LossTerms TermsOfLoss() const;
  struct LossChunk;
  struct LossOutputs {
    Slice stats, losses;  // absent where nobody asks for it
  };
  // `losses`: of each row, or absent.
  void Loss(Slice hidden, Slice targets, Slice stats, Slice losses);
  // Of each row.
  Slice LossesOf(Slice hidden, Slice targets);
  LossChunk ExplicitLoss(Slice hidden, Slice targets, const LossOutputs& to, int64_t begin,
                         int64_t rows);
  void HeadGradients(const LossChunk& chunk, Slice dhidden, ParameterGradients* gradients);
  int64_t LossChunkRows(int64_t rows) const;

  const ModelConfig& config_;
  const Parameters& parameters_;
  const Parallel& parallel_;
  const ForwardOptions options_;
  Builder& builder_;
  const bool keeps_weights_;
  bool is_reference_ = false;  // what is appended now
  Weights weights_;
  Slice places_, starts_;
  Slice positions_, spans_;      // of new tokens
  std::map<int, Slice> angles_;  // of their positions, by rotary table
};

}  // namespace terrace::compiler
