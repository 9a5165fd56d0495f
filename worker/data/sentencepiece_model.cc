// SPDX-License-Identifier: Apache-2.0
#include "worker/data/sentencepiece_model.h"

#include <dlfcn.h>

#include <filesystem>

#include "worker/data/sentencepiece_module.h"

namespace terrace {
namespace {

// Beside the program, or in bin/ beside the folder of a test.
const SentencePieceModule* LoadModule(std::string* error) {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const std::filesystem::path& place : {folder, folder.parent_path() / "bin", folder.parent_path() / "lib/terrace"}) {
    const std::filesystem::path file = place / kSentencePieceModuleFile;
    if (!std::filesystem::exists(file, ignored)) continue;
    // Deep binding: the library must find its own protobuf before ours.
    void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    void* symbol = handle == nullptr ? nullptr : ::dlsym(handle, kSentencePieceModuleSymbol);
    if (symbol != nullptr) return static_cast<const SentencePieceModule*>(symbol);
    *error = ::dlerror();
    return nullptr;
  }
  *error = std::string(kSentencePieceModuleFile) + " is not in " + folder.string() + "; install it beside the program";
  return nullptr;
}

}  // namespace

SentencePieceModel::~SentencePieceModel() {
  if (model_ != nullptr) module_->destroy(model_);
}

bool SentencePieceModel::Parse(std::string_view serialized, std::string* error) {
  if (module_ == nullptr) module_ = LoadModule(error);
  if (module_ == nullptr || model_ != nullptr) return false;
  const auto report = [](void* out, const char* text) { *static_cast<std::string*>(out) = text; };
  model_ = module_->parse(serialized.data(), serialized.size(), report, error);
  return model_ != nullptr;
}

int32_t SentencePieceModel::pieces() const { return module_->pieces(model_); }

int32_t SentencePieceModel::end_of_sentence() const { return module_->end_of_sentence(model_); }

void SentencePieceModel::Encode(std::string_view text, std::vector<int32_t>* ids) const {
  const auto append = [](void* out, int32_t id) { static_cast<std::vector<int32_t>*>(out)->push_back(id); };
  module_->encode(model_, text.data(), text.size(), append, ids);
}

std::string SentencePieceModel::Decode(const std::vector<int32_t>& ids) const {
  std::vector<int32_t> known;
  for (const int32_t id : ids) {
    if (id >= 0 && id < pieces()) known.push_back(id);
  }
  std::string text;
  const auto append = [](void* out, const char* part, size_t size) { static_cast<std::string*>(out)->append(part, size); };
  module_->decode(model_, known.data(), known.size(), append, &text);
  return text;
}

}  // namespace terrace
