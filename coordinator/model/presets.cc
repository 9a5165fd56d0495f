// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/presets.h"

#include <algorithm>

namespace terrace {
namespace {

// Architecture keys of the published config.json files; parameter counts as the model cards and
// safetensors headers on the Hugging Face Hub state them. "gpt-bytes-10m" is our own: a GPT-2 over
// bytes for first runs.
const std::vector<Preset>& Table() {
  static const std::vector<Preset> table = {
      {"gpt-bytes-10m",
       R"({"model_type":"gpt2","vocab_size":256,"n_positions":256,"n_embd":384,"n_layer":6)"
       R"(,"n_head":6,"activation_function":"gelu_new","layer_norm_epsilon":1e-5)"
       R"(,"initializer_range":0.02,"bos_token_id":0,"eos_token_id":0})",
       10844160},
      {"gpt2",
       R"({"model_type":"gpt2","vocab_size":50257,"n_positions":1024,"n_embd":768,"n_layer":12)"
       R"(,"n_head":12,"activation_function":"gelu_new","layer_norm_epsilon":1e-5)"
       R"(,"initializer_range":0.02,"bos_token_id":50256,"eos_token_id":50256})",
       124439808},
      {"gpt2-large",
       R"({"model_type":"gpt2","vocab_size":50257,"n_positions":1024,"n_embd":1280,"n_layer":36)"
       R"(,"n_head":20,"activation_function":"gelu_new","layer_norm_epsilon":1e-5)"
       R"(,"initializer_range":0.02,"bos_token_id":50256,"eos_token_id":50256})",
       774030080},
      {"gpt2-medium",
       R"({"model_type":"gpt2","vocab_size":50257,"n_positions":1024,"n_embd":1024,"n_layer":24)"
       R"(,"n_head":16,"activation_function":"gelu_new","layer_norm_epsilon":1e-5)"
       R"(,"initializer_range":0.02,"bos_token_id":50256,"eos_token_id":50256})",
       354823168},
      {"gpt2-xl",
       R"({"model_type":"gpt2","vocab_size":50257,"n_positions":1024,"n_embd":1600,"n_layer":48)"
       R"(,"n_head":25,"activation_function":"gelu_new","layer_norm_epsilon":1e-5)"
       R"(,"initializer_range":0.02,"bos_token_id":50256,"eos_token_id":50256})",
       1557611200},
      {"llama-2-13b",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":32000)"
       R"(,"hidden_size":5120,"intermediate_size":13824,"num_hidden_layers":40)"
       R"(,"num_attention_heads":40,"num_key_value_heads":40,"max_position_embeddings":4096)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})",
       13015864320},
      {"llama-2-70b",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":32000)"
       R"(,"hidden_size":8192,"intermediate_size":28672,"num_hidden_layers":80)"
       R"(,"num_attention_heads":64,"num_key_value_heads":8,"max_position_embeddings":4096)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})",
       68976648192},
      {"llama-2-7b",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":32000)"
       R"(,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32)"
       R"(,"num_attention_heads":32,"num_key_value_heads":32,"max_position_embeddings":4096)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})",
       6738415616},
      {"llama-3.1-405b",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":128256)"
       R"(,"hidden_size":16384,"intermediate_size":53248,"num_hidden_layers":126)"
       R"(,"num_attention_heads":128,"num_key_value_heads":8,"max_position_embeddings":131072)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":500000.0,"tie_word_embeddings":false)"
       R"(,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0)"
       R"(,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})",
       405853388800},
      {"llama-3.1-70b",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":128256)"
       R"(,"hidden_size":8192,"intermediate_size":28672,"num_hidden_layers":80)"
       R"(,"num_attention_heads":64,"num_key_value_heads":8,"max_position_embeddings":131072)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":500000.0,"tie_word_embeddings":false)"
       R"(,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0)"
       R"(,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})",
       70553706496},
      {"llama-3.1-8b",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":128256)"
       R"(,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32)"
       R"(,"num_attention_heads":32,"num_key_value_heads":8,"max_position_embeddings":131072)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":500000.0,"tie_word_embeddings":false)"
       R"(,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0)"
       R"(,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})",
       8030261248},
      {"llama-3.2-1b",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":128256)"
       R"(,"hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":16)"
       R"(,"num_attention_heads":32,"num_key_value_heads":8,"max_position_embeddings":131072)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":500000.0,"tie_word_embeddings":true,"head_dim":64)"
       R"(,"rope_scaling":{"rope_type":"llama3","factor":32.0,"low_freq_factor":1.0)"
       R"(,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})",
       1235814400},
      {"llama-3.2-3b",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":128256)"
       R"(,"hidden_size":3072,"intermediate_size":8192,"num_hidden_layers":28)"
       R"(,"num_attention_heads":24,"num_key_value_heads":8,"max_position_embeddings":131072)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":500000.0,"tie_word_embeddings":true,"head_dim":128)"
       R"(,"rope_scaling":{"rope_type":"llama3","factor":32.0,"low_freq_factor":1.0)"
       R"(,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})",
       3212749824},
      {"mistral-7b-v0.1",
       R"({"model_type":"mistral","hidden_act":"silu","initializer_range":0.02)"
       R"(,"vocab_size":32000,"hidden_size":4096,"intermediate_size":14336)"
       R"(,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8)"
       R"(,"max_position_embeddings":32768,"rms_norm_eps":1e-5,"rope_theta":10000.0)"
       R"(,"tie_word_embeddings":false,"sliding_window":4096})",
       7241732096},
      {"mistral-7b-v0.3",
       R"({"model_type":"mistral","hidden_act":"silu","initializer_range":0.02)"
       R"(,"vocab_size":32768,"hidden_size":4096,"intermediate_size":14336)"
       R"(,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8)"
       R"(,"max_position_embeddings":32768,"rms_norm_eps":1e-5,"rope_theta":1000000.0)"
       R"(,"tie_word_embeddings":false})",
       7248023552},
      {"qwen2.5-0.5b",
       R"({"model_type":"qwen2","hidden_act":"silu","initializer_range":0.02,"vocab_size":151936)"
       R"(,"hidden_size":896,"intermediate_size":4864,"num_hidden_layers":24)"
       R"(,"num_attention_heads":14,"num_key_value_heads":2,"max_position_embeddings":32768)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":true)"
       R"(,"use_sliding_window":false})",
       494032768},
      {"qwen2.5-1.5b",
       R"({"model_type":"qwen2","hidden_act":"silu","initializer_range":0.02,"vocab_size":151936)"
       R"(,"hidden_size":1536,"intermediate_size":8960,"num_hidden_layers":28)"
       R"(,"num_attention_heads":12,"num_key_value_heads":2,"max_position_embeddings":131072)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":true)"
       R"(,"use_sliding_window":false})",
       1543714304},
      {"qwen2.5-14b",
       R"({"model_type":"qwen2","hidden_act":"silu","initializer_range":0.02,"vocab_size":152064)"
       R"(,"hidden_size":5120,"intermediate_size":13824,"num_hidden_layers":48)"
       R"(,"num_attention_heads":40,"num_key_value_heads":8,"max_position_embeddings":131072)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":false)"
       R"(,"use_sliding_window":false})",
       14770033664},
      {"qwen2.5-32b",
       R"({"model_type":"qwen2","hidden_act":"silu","initializer_range":0.02,"vocab_size":152064)"
       R"(,"hidden_size":5120,"intermediate_size":27648,"num_hidden_layers":64)"
       R"(,"num_attention_heads":40,"num_key_value_heads":8,"max_position_embeddings":131072)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":false)"
       R"(,"use_sliding_window":false})",
       32763876352},
      {"qwen2.5-3b",
       R"({"model_type":"qwen2","hidden_act":"silu","initializer_range":0.02,"vocab_size":151936)"
       R"(,"hidden_size":2048,"intermediate_size":11008,"num_hidden_layers":36)"
       R"(,"num_attention_heads":16,"num_key_value_heads":2,"max_position_embeddings":32768)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":true)"
       R"(,"use_sliding_window":false})",
       3085938688},
      {"qwen2.5-72b",
       R"({"model_type":"qwen2","hidden_act":"silu","initializer_range":0.02,"vocab_size":152064)"
       R"(,"hidden_size":8192,"intermediate_size":29568,"num_hidden_layers":80)"
       R"(,"num_attention_heads":64,"num_key_value_heads":8,"max_position_embeddings":131072)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":false)"
       R"(,"use_sliding_window":false})",
       72706203648},
      {"qwen2.5-7b",
       R"({"model_type":"qwen2","hidden_act":"silu","initializer_range":0.02,"vocab_size":152064)"
       R"(,"hidden_size":3584,"intermediate_size":18944,"num_hidden_layers":28)"
       R"(,"num_attention_heads":28,"num_key_value_heads":4,"max_position_embeddings":131072)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":false)"
       R"(,"use_sliding_window":false})",
       7615616512},
      {"qwen3-0.6b",
       R"({"model_type":"qwen3","hidden_act":"silu","initializer_range":0.02,"vocab_size":151936)"
       R"(,"hidden_size":1024,"intermediate_size":3072,"num_hidden_layers":28)"
       R"(,"num_attention_heads":16,"num_key_value_heads":8,"max_position_embeddings":40960)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":true,"head_dim":128)"
       R"(,"attention_bias":false})",
       596049920},
      {"qwen3-1.7b",
       R"({"model_type":"qwen3","hidden_act":"silu","initializer_range":0.02,"vocab_size":151936)"
       R"(,"hidden_size":2048,"intermediate_size":6144,"num_hidden_layers":28)"
       R"(,"num_attention_heads":16,"num_key_value_heads":8,"max_position_embeddings":40960)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":true,"head_dim":128)"
       R"(,"attention_bias":false})",
       1720574976},
      {"qwen3-14b",
       R"({"model_type":"qwen3","hidden_act":"silu","initializer_range":0.02,"vocab_size":151936)"
       R"(,"hidden_size":5120,"intermediate_size":17408,"num_hidden_layers":40)"
       R"(,"num_attention_heads":40,"num_key_value_heads":8,"max_position_embeddings":40960)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":false,"head_dim":128)"
       R"(,"attention_bias":false})",
       14768307200},
      {"qwen3-32b",
       R"({"model_type":"qwen3","hidden_act":"silu","initializer_range":0.02,"vocab_size":151936)"
       R"(,"hidden_size":5120,"intermediate_size":25600,"num_hidden_layers":64)"
       R"(,"num_attention_heads":64,"num_key_value_heads":8,"max_position_embeddings":40960)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":false,"head_dim":128)"
       R"(,"attention_bias":false})",
       32762123264},
      {"qwen3-4b",
       R"({"model_type":"qwen3","hidden_act":"silu","initializer_range":0.02,"vocab_size":151936)"
       R"(,"hidden_size":2560,"intermediate_size":9728,"num_hidden_layers":36)"
       R"(,"num_attention_heads":32,"num_key_value_heads":8,"max_position_embeddings":40960)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":true,"head_dim":128)"
       R"(,"attention_bias":false})",
       4022468096},
      {"qwen3-8b",
       R"({"model_type":"qwen3","hidden_act":"silu","initializer_range":0.02,"vocab_size":151936)"
       R"(,"hidden_size":4096,"intermediate_size":12288,"num_hidden_layers":36)"
       R"(,"num_attention_heads":32,"num_key_value_heads":8,"max_position_embeddings":40960)"
       R"(,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":false,"head_dim":128)"
       R"(,"attention_bias":false})",
       8190735360},
      {"smollm2-1.7b",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":49152)"
       R"(,"hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":24)"
       R"(,"num_attention_heads":32,"num_key_value_heads":32,"max_position_embeddings":8192)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":130000.0,"tie_word_embeddings":true})",
       1711376384},
      {"smollm2-135m",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":49152)"
       R"(,"hidden_size":576,"intermediate_size":1536,"num_hidden_layers":30)"
       R"(,"num_attention_heads":9,"num_key_value_heads":3,"max_position_embeddings":8192)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":100000.0,"tie_word_embeddings":true})",
       134515008},
      {"smollm2-360m",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":49152)"
       R"(,"hidden_size":960,"intermediate_size":2560,"num_hidden_layers":32)"
       R"(,"num_attention_heads":15,"num_key_value_heads":5,"max_position_embeddings":8192)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":100000.0,"tie_word_embeddings":true})",
       361821120},
      {"starcoder2-3b",
       R"({"model_type":"starcoder2","hidden_act":"gelu_pytorch_tanh","vocab_size":49152)"
       R"(,"initializer_range":0.018042,"hidden_size":3072,"intermediate_size":12288)"
       R"(,"num_hidden_layers":30,"num_attention_heads":24,"num_key_value_heads":2)"
       R"(,"max_position_embeddings":16384,"sliding_window":4096,"norm_epsilon":1e-5)"
       R"(,"rope_theta":999999.4420358813,"use_bias":true,"tie_word_embeddings":true})",
       3030371328},
      {"tinyllama-1.1b",
       R"({"model_type":"llama","hidden_act":"silu","initializer_range":0.02,"vocab_size":32000)"
       R"(,"hidden_size":2048,"intermediate_size":5632,"num_hidden_layers":22)"
       R"(,"num_attention_heads":32,"num_key_value_heads":4,"max_position_embeddings":2048)"
       R"(,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})",
       1100048384},
  };
  return table;
}

}  // namespace

const std::vector<Preset>& Presets() { return Table(); }

const Preset* FindPreset(std::string_view name) {
  const std::vector<Preset>& table = Table();
  auto it = std::lower_bound(
      table.begin(), table.end(), name,
      [](const Preset& preset, std::string_view key) { return preset.name < key; });
  return it != table.end() && it->name == name ? &*it : nullptr;
}

}  // namespace terrace
