// What is fuzzed: the formats that come from outside, and what reads each. A target takes any
// bytes. It may refuse them with a sentence; it must not crash, hang or, where it accepts them,
// break a promise of the reader, which ends the process with abort().
//
// The same targets run under libFuzzer (fuzz_main.cc), and over the stored corpus with a fixed set
// of mutations in the test suite (replay_test.cc).
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace terrace {

struct FuzzTarget {
  std::string_view name;  // of the folder of its corpus
  void (*run)(std::string_view input);
};

// Texts that people and other programs write: targets_text.cc.
void FuzzSpec(std::string_view input);
void FuzzModelConfig(std::string_view input);
void FuzzAdapterConfig(std::string_view input);
void FuzzDeepSpeed(std::string_view input);
void FuzzMegatron(std::string_view input);
void FuzzCluster(std::string_view input);
// Files: targets_file.cc.
void FuzzSafetensors(std::string_view input);
void FuzzTokenFile(std::string_view input);
void FuzzTokenizerJson(std::string_view input);
void FuzzSentencePiece(std::string_view input);
void FuzzManifest(std::string_view input);
void FuzzProgram(std::string_view input);
// Training texts: targets_data.cc.
void FuzzJsonLine(std::string_view input);
void FuzzCompressedText(std::string_view input);
// Messages of workers and clients: targets_message.cc.
void FuzzWorkerMessages(std::string_view input);
void FuzzClientCalls(std::string_view input);

inline constexpr FuzzTarget kFuzzTargets[] = {
    {"spec", &FuzzSpec},
    {"model_config", &FuzzModelConfig},
    {"adapter_config", &FuzzAdapterConfig},
    {"deepspeed", &FuzzDeepSpeed},
    {"megatron", &FuzzMegatron},
    {"cluster", &FuzzCluster},
    {"safetensors", &FuzzSafetensors},
    {"token_file", &FuzzTokenFile},
    {"tokenizer_json", &FuzzTokenizerJson},
    {"sentencepiece", &FuzzSentencePiece},
    {"manifest", &FuzzManifest},
    {"program", &FuzzProgram},
    {"json_line", &FuzzJsonLine},
    {"compressed_text", &FuzzCompressedText},
    {"worker_messages", &FuzzWorkerMessages},
    {"client_calls", &FuzzClientCalls},
};

// Null when no target has that name.
constexpr const FuzzTarget* FindFuzzTarget(std::string_view name) {
  for (const FuzzTarget& target : kFuzzTargets) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

}  // namespace terrace
