// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/check/program_check.h"
#include "proto/tokens/token_file.h"
#include "proto/v1/program.pb.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/target.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors/safetensors_header.h"
#include "worker/data/sentencepiece/tokenizer.h"
#include "worker/data/token_segment.h"
#include "worker/data/tokenizer_json/tokenizer_json.h"

namespace terrace {
namespace {

// A folder in memory of this process alone, for readers that take a path.
const std::string& Folder() {
  static const auto* const folder = [] {
    auto* path = new std::string(absl::StrCat("/dev/shm/terrace-fuzz-", ::getpid()));
    std::filesystem::create_directories(*path);
    std::atexit([] { std::filesystem::remove_all(Folder()); });
    return path;
  }();
  return *folder;
}

std::string Written(const std::string& name, std::string_view content) {
  const std::string path = absl::StrCat(Folder(), "/", name);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

// Any text has ids of the vocabulary, and ids a text.
void JudgeTokenizer(const absl::StatusOr<std::unique_ptr<Tokenizer>>& tokenizer) {
  if (!tokenizer.ok()) return JudgeRefusal(tokenizer.status());
  for (const std::string_view text : {"", "In the beginning", "  two  spaces\n\ttab",
                                      "\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82 1234"}) {
    std::vector<int32_t> ids;
    (*tokenizer)->Encode(text, &ids);
    for (const int32_t id : ids) {
      FuzzRequire(id >= 0 && id < (*tokenizer)->vocabulary(), "an id is of the vocabulary",
                  absl::StrCat(id));
    }
    (*tokenizer)->Decode(ids);
  }
}

}  // namespace

// The header of a file that is as long as its data could be.
void FuzzSafetensors(std::string_view input) {
  const auto bytes = std::as_bytes(std::span(input.data(), input.size()));
  for (const int64_t file_bytes : {static_cast<int64_t>(input.size()), int64_t{1} << 20}) {
    const auto header = ParseSafetensorsHeader(bytes, file_bytes, "model.safetensors");
    if (!header.ok()) {
      JudgeRefusal(header.status());
      continue;
    }
    for (const SafetensorsEntry& entry : header->entries) {
      FuzzRequire(entry.begin >= 0 && entry.begin <= entry.end &&
                      header->data_offset + entry.end <= file_bytes,
                  "a tensor lies inside the file", entry.name);
    }
  }
}

// As a .bin, and as the .idx beside another one.
void FuzzTokenFile(std::string_view input) {
  const auto bytes = std::as_bytes(std::span(input.data(), input.size()));
  for (const int64_t vocabulary : {512, 70'000}) {
    const auto run = ReadTokenFile("tokens.bin", bytes, input.size(), vocabulary);
    if (!run.ok()) {
      JudgeRefusal(run.status());
      continue;
    }
    const int64_t end = run->offset + run->count * static_cast<int64_t>(run->type);
    FuzzRequire(run->offset >= 0 && run->count >= 0 && end <= static_cast<int64_t>(input.size()),
                "tokens lie inside the file", "");
    FindBeyond(run->type, bytes.data() + run->offset, run->count, vocabulary);
  }
  Written("indexed.bin", std::string(64, '\1'));
  const auto segment = OpenTokenFile(Written("indexed.idx", input), 512);
  if (!segment.ok()) return JudgeRefusal(segment.status());
  std::vector<int32_t> ids(segment->count);
  segment->Read(0, ids);
  for (int64_t i = 0; segment->document_end && i < segment->documents; ++i) {
    const int64_t end = segment->document_end(i);
    FuzzRequire(end >= 0 && end <= segment->count, "a document ends inside the file", "");
  }
}

void FuzzTokenizerJson(std::string_view input) {
  JudgeTokenizer(LoadTokenizerJson(Written("tokenizer.json", input), ""));
}

void FuzzSentencePiece(std::string_view input) {
  JudgeTokenizer(LoadSentencePieceTokenizer(Written("tokenizer.model", input), ""));
}

void FuzzManifest(std::string_view input) {
  Written(kManifestName, input);
  const auto manifest = ReadManifest(Folder());
  if (!manifest.ok()) return JudgeRefusal(manifest.status());
  for (const ManifestFile& file : manifest->files)
    FuzzRequire(file.name.find('/') == std::string::npos, "a file lies in the folder", file.name);
}

void FuzzProgram(std::string_view input) {
  v1::Program program;
  if (!program.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  const absl::Status status = CheckProgram(program);
  if (!status.ok()) JudgeRefusal(status);
}

}  // namespace terrace
