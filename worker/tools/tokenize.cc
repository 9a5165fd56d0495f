// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/tokenize.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/exit_code.h"
#include "base/file.h"
#include "base/log.h"
#include "base/paths/new_file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/tokens/token_file.h"
#include "proto/v1/tools.pb.h"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/token_cache.h"
#include "worker/data/token_file_writer.h"
#include "worker/data/tokenizer.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// A new folder beside the output, removed at the end: the same disk, so that the space needed is
// where it is wanted.
class TemporaryCache {
 public:
  static absl::StatusOr<TemporaryCache> Make(const std::string& output_path) {
    std::string path = absl::StrCat(output_path, ".cache-XXXXXX");
    if (::mkdtemp(path.data()) == nullptr) return FileError(errno, "create the folder", path);
    return TemporaryCache(std::move(path));
  }
  TemporaryCache(TemporaryCache&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TemporaryCache& operator=(TemporaryCache&&) = delete;
  ~TemporaryCache() {
    if (!path_.empty()) RemoveAll(path_).IgnoreError();  // what is left is the user's to remove
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryCache(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

// The output replaces what has its name, which must be neither an input nor what is no file.
absl::Status CheckOutput(const TokenizeArgs& args) {
  RETURN_IF_ERROR(CheckCanBeReplaced(args.output_path));
  std::vector<std::string> inputs = args.files;
  inputs.push_back(args.tokenizer);
  for (const std::string& input : inputs) {
    std::error_code ignored;
    if (!fs::equivalent(args.output_path, input, ignored)) continue;
    return absl::InvalidArgumentError(absl::StrCat("--output: got ", args.output_path,
                                                   ", must not be ", input,
                                                   ", which is read; name another file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TextFormat> FormatOf(const std::string& path) {
  const absl::StatusOr<DataFileKind> kind = DataFileKindOf(path);
  if (kind.ok() && *kind == DataFileKind::kText) return TextFormat::kText;
  if (kind.ok() && *kind == DataFileKind::kJsonLines) return TextFormat::kJsonLines;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " must end in .txt or .jsonl, compressed perhaps (.gz, .zst)"));
}

absl::StatusOr<TokenFileFormat> ParseTokenFileFormat(const std::string& name) {
  if (name == "llmc") return TokenFileFormat::kLlmc;
  if (name == "raw") return TokenFileFormat::kRaw;
  return absl::InvalidArgumentError(
      absl::StrCat("--format is \"", name, "\", must be llmc or raw"));
}

absl::StatusOr<v1::TokenizeResult> Tokenize(const TokenizeArgs& args, TokenFileFormat format,
                                            ProgressBar* bar) {
  RETURN_IF_ERROR(CheckOutput(args));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(args.tokenizer));
  ASSIGN_OR_RETURN(ChatTemplate chat, ReadChatTemplate(args.tokenizer, args.chat_template));
  ChatRenderer chats(std::move(chat), {.finds_special_tokens = tokenizer->finds_special_tokens()},
                     nullptr);
  std::optional<TemporaryCache> temporary;
  if (args.cache.empty()) {
    ASSIGN_OR_RETURN(TemporaryCache made, TemporaryCache::Make(args.output_path));
    temporary.emplace(std::move(made));
  }
  const std::string cache = temporary ? temporary->path() : args.cache;
  v1::TokenizeResult result;
  std::vector<CachedTokens> parts;
  for (const std::string& path : args.files) {
    ASSIGN_OR_RETURN(const TextFormat text_format, FormatOf(path));
    ASSIGN_OR_RETURN(
        CachedTokens part,
        OpenTokenCache({path, text_format, tokenizer.get(), cache, &chats},
                       [&](std::string_view text, double fraction) { bar->Draw(text, fraction); }));
    if (!part.segment.uncounted.empty()) {
      log::Warn(path,
                " has prompts, which a .bin does not mark: the loss of a job that reads it "
                "counts them; name the .jsonl itself in data.train to train on answers alone");
    }
    v1::TokenizedFile* file = result.add_files();
    file->set_path(path);
    std::error_code ignored;
    file->set_bytes(fs::file_size(path, ignored));
    file->set_documents(part.segment.documents);
    file->set_tokens(part.segment.count);
    file->set_cached(part.was_cached);
    result.set_tokens(result.tokens() + part.segment.count);
    result.set_documents(result.documents() + part.segment.documents);
    result.set_max_id(std::max<int64_t>(result.max_id(), part.max_id));
    parts.push_back(std::move(part));
  }
  std::vector<const TokenSegment*> segments;
  for (const CachedTokens& part : parts) segments.push_back(&part.segment);
  RETURN_IF_ERROR(WriteTokenFile(args.output_path, format, tokenizer->vocabulary(), segments));
  result.set_output(args.output_path);
  result.set_format(args.format);
  result.set_dtype(tokenizer->vocabulary() > kLargestUint16Vocabulary ? "uint32" : "uint16");
  result.set_tokenizer(args.tokenizer);
  result.set_vocabulary(tokenizer->vocabulary());
  return result;
}

void PrintSummary(const v1::TokenizeResult& result, std::ostream& out) {
  for (const v1::TokenizedFile& file : result.files()) {
    // How long a compressed file's text is nobody has counted.
    const bool counts = !absl::EndsWith(file.path(), ".gz") &&
                        !absl::EndsWith(file.path(), ".zst") && file.tokens() > 0;
    const std::string each =
        counts ? absl::StrFormat(", %.3f bytes a token", 1.0 * file.bytes() / file.tokens()) : "";
    out << absl::StreamFormat("%s: %d tokens, %d documents%s%s\n", file.path(), file.tokens(),
                              file.documents(), each, file.cached() ? " (cached)" : "");
  }
  out << absl::StreamFormat("%s: %d tokens (%s, %s), largest id %d of a vocabulary of %d, %.1f s\n",
                            result.output(), result.tokens(), result.dtype(), result.format(),
                            result.max_id(), result.vocabulary(), result.seconds());
}

}  // namespace

int RunTokenizeTool(const TokenizeArgs& args, const ToolOutput& output) {
  const absl::StatusOr<TokenFileFormat> format = ParseTokenFileFormat(args.format);
  if (!format.ok() || args.files.empty()) {
    FailTool(output, args.files.empty() ? absl::InvalidArgumentError("no files to tokenise")
                                        : format.status());
    return ToInt(ExitCode::kUsage);
  }
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<v1::TokenizeResult> result = [&] {
    ProgressBar bar(output);
    return Tokenize(args, *format, &bar);
  }();
  if (!result.ok()) return FailTool(output, result.status());
  result->set_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (output.format == ToolFormat::kJson) {
    PrintJson(*result, output.out);
  } else {
    PrintSummary(*result, output.out);
  }
  return ToInt(ExitCode::kOk);
}

}  // namespace terrace
