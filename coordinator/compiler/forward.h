// The forward pass of one micro-batch, for all families: embedding, layers (attention, MLP), final
// norm, and what follows.
//
// Appends nodes through a Builder; the values they write are the activations that autodiff.h may
// keep for the backward pass. The same code builds "train", "eval" and "infer". Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coordinator/compiler/builder.h"
#include "coordinator/compiler/parameters.h"

namespace terrace::compiler {

struct ForwardOptions {
  int64_t batch = 0;     // sequences
  int64_t sequence = 0;  // tokens of each
  kernels::DType activation = kernels::DType::kF32;
  kernels::MatmulPrecision precision = kernels::MatmulPrecision::kF32;
  bool for_backward = false;  // keep the values before activations
  int rope_table = kNone;     // value; kNone without rotary embedding
};

class Forward {
 public:
  // Everything is borrowed.
  Forward(const Model& model, const Parameters& parameters, const ForwardOptions& options,
          Builder* builder)
      : config_(model.config), parameters_(parameters), options_(options), builder_(*builder) {}

  // tokens [T] -> the residual stream after the last layer [T,h].
  Slice Layers(Slice tokens);
  Slice FinalNorm(Slice x);
  // stats[2] = {sum of losses, counted targets} of the normed hidden state.
  void Loss(Slice hidden, Slice targets, Slice stats);
  // hidden [n,h] -> logits [n,V] f32.
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
  };

  Slice Weight(TensorRole role) const {
    return parameters_.Weight(builder_.graph(), role, builder_.layer);
  }
  // An activation of as many rows as the micro-batch has tokens.
  Slice Activation(const std::string& name, int64_t columns);
  Slice Statistic(const std::string& name, const Dims& dims);
  int64_t tokens() const { return options_.batch * options_.sequence; }

  Slice Embedding(Slice tokens);
  Slice Norm(Slice x, TensorRole weight, TensorRole bias, const std::string& name);
  void RmsNorm(Slice x, Slice weight, Slice y, const std::string& name);
  void Linear(Slice x, Slice weight, Slice bias, Slice y, const LinearOptions& options,
              const std::string& name);
  // As the config says the family's weights are stored.
  LinearOptions Stored() const { return {.transpose = !config_.conv1d_weights}; }

  Slice Attention(Slice x);
  Slice QkvProduct(Slice x);
  Slice HeadNorms(Slice qkv);
  Heads SplitHeads(Slice qk, Slice v) const;
  Slice Mlp(Slice x);
  Slice GeluMlp(Slice x);
  Slice SwigluMlp(Slice x);

  const ModelConfig& config_;
  const Parameters& parameters_;
  const ForwardOptions options_;
  Builder& builder_;
};

}  // namespace terrace::compiler
