// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/data_files.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/paths/compression.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/model/config.h"
#include "proto/tokens/sources.h"
#include "proto/tokens/token_file.h"
#include "proto/tokens/window_lengths.h"

namespace terrace {
namespace {

// How many tokens there are; nothing where it cannot be known without reading all.
using TokenCount = std::optional<int64_t>;

struct Beginning {
  std::vector<std::byte> head;
  int64_t bytes = 0;  // of the whole file
};

// Nothing where this machine sees no such file, or may not read it.
absl::StatusOr<std::optional<Beginning>> ReadBeginning(const std::string& path) {
  const absl::StatusOr<OpenFile> file = OpenRegularFile(path);
  if (absl::IsInvalidArgument(file.status())) return file.status();
  if (!file.ok()) return std::nullopt;
  Beginning beginning{.head = std::vector<std::byte>(std::min(file->bytes, kTokenFileHeadBytes)),
                      .bytes = file->bytes};
  const ssize_t read =
      pread(file->fd.get(), beginning.head.data(), beginning.head.size(), /*offset=*/0);
  if (read != static_cast<ssize_t>(beginning.head.size())) return std::nullopt;
  return beginning;
}

absl::Status CheckFirstIds(const std::string& path, const TokenRun& run,
                           std::span<const std::byte> head, int64_t vocabulary) {
  const auto room = static_cast<int64_t>(head.size()) - run.offset;
  const int64_t count = std::min(run.count, room / static_cast<int64_t>(run.type));
  const std::byte* ids = head.data() + run.offset;
  const std::optional<int64_t> position = FindBeyond(run.type, ids, count, vocabulary);
  if (!position.has_value()) return absl::OkStatus();
  uint32_t id = 0;
  std::memcpy(&id, ids + *position * static_cast<int64_t>(run.type),
              static_cast<size_t>(run.type));  // little-endian, as the file
  return BeyondVocabulary(path, run.type_by_vocabulary && run.type == TokenType::kU32, id,
                          *position, vocabulary);
}

absl::StatusOr<TokenCount> LookAtTokens(const std::string& path, int64_t vocabulary) {
  const TokenFilePaths paths = TokenFilePathsOf(path);
  ASSIGN_OR_RETURN(const std::optional<Beginning> tokens, ReadBeginning(paths.tokens));
  if (!tokens.has_value()) return std::nullopt;
  TokenRun run;
  if (paths.index.empty()) {
    ASSIGN_OR_RETURN(run, ReadTokenFile(paths.tokens, tokens->head, tokens->bytes, vocabulary));
  } else {
    ASSIGN_OR_RETURN(const std::optional<Beginning> index, ReadBeginning(paths.index));
    if (!index.has_value()) return std::nullopt;
    ASSIGN_OR_RETURN(const MegatronIndex header,
                     ReadMegatronIndex(paths.index, index->head, index->bytes));
    run = {.type = header.type, .count = tokens->bytes / static_cast<int64_t>(header.type)};
  }
  RETURN_IF_ERROR(CheckFirstIds(paths.tokens, run, tokens->head, vocabulary));
  return run.count;
}

absl::StatusOr<TokenCount> LookAtText(const std::string& path, bool bytes_are_tokens) {
  ASSIGN_OR_RETURN(const std::optional<Beginning> text, ReadBeginning(path));
  if (text.has_value()) RETURN_IF_ERROR(CheckCompression(path, text->head));
  const bool is_compressed = CompressionOf(path) != Compression::kNone;
  if (!text.has_value() || is_compressed || (!bytes_are_tokens && text->bytes > 0))
    return std::nullopt;
  return text->bytes;
}

// Those of all `paths`, which a key names, where each is known.
absl::StatusOr<TokenCount> LookAtAll(std::string_view key,
                                     std::span<const std::string* const> paths,
                                     bool bytes_are_tokens, std::optional<int64_t> vocabulary) {
  TokenCount sum = 0;
  for (const std::string* const each : paths) {
    const std::string& path = *each;
    absl::StatusOr<TokenCount> count = TokenCount();
    const absl::StatusOr<DataFileKind> kind = DataFileKindOf(path);
    if (!kind.ok()) {
      count = kind.status();
    } else if (*kind != DataFileKind::kTokens) {
      count = LookAtText(path, bytes_are_tokens && *kind == DataFileKind::kText);
    } else if (vocabulary.has_value()) {
      count = LookAtTokens(path, *vocabulary);
    }
    if (!count.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(Absl(key), ": ", count.status().message()));
    }
    sum = sum.has_value() && count->has_value() ? TokenCount(*sum + **count) : std::nullopt;
  }
  return sum;
}

struct DataTokens {
  std::vector<DataSourceFiles> sources;
  std::vector<TokenCount> train;  // of each
  TokenCount validation;
};

absl::StatusOr<DataTokens> LookAtData(const v1::JobSpec& spec) {
  const v1::DataSpec& data = spec.data();
  const auto model = ParseModelConfig(spec.model().config_json(), data.sequence_length());
  std::optional<int64_t> vocabulary;
  if (model.ok()) vocabulary = model->vocabulary;
  const bool bytes_are_tokens = data.tokenizer() == "bytes";
  DataTokens tokens;
  ASSIGN_OR_RETURN(tokens.sources, SourcesOf(data));
  for (const DataSourceFiles& source : tokens.sources) {
    const std::span paths(data.train().data() + source.begin, source.end - source.begin);
    ASSIGN_OR_RETURN(tokens.train.emplace_back(),
                     LookAtAll("data.train", paths, bytes_are_tokens, vocabulary));
  }
  const std::span validation(data.validation().data(), data.validation_size());
  ASSIGN_OR_RETURN(tokens.validation,
                   LookAtAll("data.validation", validation, bytes_are_tokens, vocabulary));
  return tokens;
}

}  // namespace

absl::Status CheckDataFiles(const v1::JobSpec& spec) { return LookAtData(spec).status(); }

absl::Status CheckDataLengths(const v1::JobSpec& spec) {
  // Documents are counted by the ranks: what is too short for a window may be enough of them.
  if (spec.data().samples() == "documents" || spec.data().samples() == "packed")
    return absl::OkStatus();
  ASSIGN_OR_RETURN(const DataTokens tokens, LookAtData(spec));
  for (size_t i = 0; i < tokens.train.size(); ++i) {
    if (!tokens.train[i].has_value() || !tokens.validation.has_value()) continue;
    RETURN_IF_ERROR(CheckWindowLengths(spec.data(), *tokens.train[i], *tokens.validation,
                                       tokens.train.size() > 1 ? tokens.sources[i].name : ""));
  }
  return absl::OkStatus();
}

}  // namespace terrace
