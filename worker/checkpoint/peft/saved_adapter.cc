// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/peft/saved_adapter.h"

#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/peft/names.h"

namespace terrace {
namespace {

using Expected = SavedAdapter::Expected;

std::string Shown(std::string_view name, const std::vector<int64_t>& shape) {
  return absl::StrCat(Absl(name), " [", absl::StrJoin(shape, ", "), "]");
}

// Under the name of the model with its head, or of the model alone: its prefix is left out then.
std::optional<StoredTensor> Find(const SafetensorsReader& reader, std::string_view tensor) {
  const size_t dot = tensor.find('.');
  for (const std::string_view name : {tensor, tensor.substr(dot + 1)}) {
    auto stored = reader.Get(absl::StrCat(kPeftPrefix, Absl(name)));
    if (stored.ok()) return *std::move(stored);
  }
  return std::nullopt;
}

// A tensor of the file that the model does not have; empty when there is none.
std::string Unexpected(const SafetensorsReader& reader, const std::set<std::string>& used) {
  for (const std::string& name : reader.Names()) {
    if (used.contains(name)) continue;
    const auto tensor = reader.Get(name);
    return tensor.ok() ? Shown(name, tensor->shape) : name;
  }
  return "";
}

absl::Status OfAnotherModel(std::string_view path, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(path), " is an adapter of another model: ", Absl(why)));
}

}  // namespace

absl::StatusOr<SavedAdapter> SavedAdapter::Open(std::string_view folder,
                                                std::span<const Expected> expected) {
  const std::string path = absl::StrCat(Absl(folder), "/", kPeftWeights);
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsReader> reader, SafetensorsReader::Open(path));
  SavedAdapter adapter(std::move(reader));
  std::set<std::string> used;
  std::string missing;
  for (const auto& [tensor, shape] : expected) {
    std::optional<StoredTensor> stored = Find(*adapter.reader_, tensor);
    if (!stored.has_value()) {
      if (missing.empty()) missing = Shown(tensor, shape);
      continue;
    }
    if (stored->shape != shape) {
      return OfAnotherModel(path, absl::StrCat("it has ", Shown(stored->name, stored->shape),
                                               ", and ", Shown(tensor, shape), " is needed"));
    }
    used.insert(stored->name);
    adapter.tensors_.emplace(tensor, *std::move(stored));
  }
  const std::string unexpected = Unexpected(*adapter.reader_, used);
  if (!missing.empty()) {
    return OfAnotherModel(
        path, absl::StrCat("it lacks ", missing,
                           unexpected.empty() ? "" : absl::StrCat(", and has ", unexpected)));
  }
  if (!unexpected.empty()) {
    return OfAnotherModel(
        path, absl::StrCat("it has ", unexpected, ", which an adapter of this model does not"));
  }
  return adapter;
}

}  // namespace terrace
