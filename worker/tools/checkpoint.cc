// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/checkpoint.h"

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "proto/v1/tools.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/export/export.h"
#include "worker/train/checkpoint_tokenizer.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

bool IsCheckpoint(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::path(path) / "manifest.json", ignored);
}

v1::Checkpoint ToMessage(const CheckpointInfo& info) {
  v1::Checkpoint message;
  message.set_path(info.path);
  message.set_step(info.step);
  message.set_tokens(info.tokens);
  message.set_bytes(info.bytes);
  message.set_unix_ms(info.unix_ms);
  message.set_job(info.job);
  message.set_complete(info.complete);
  message.set_problem(info.problem);
  return message;
}

std::string TimeText(int64_t unix_ms) {
  return unix_ms == 0 ? "-"
                      : absl::FormatTime("%Y-%m-%d %H:%M:%SZ", absl::FromUnixMillis(unix_ms),
                                         absl::UTCTimeZone());
}

void PrintTable(const v1::CheckpointList& list, std::ostream& out) {
  if (list.checkpoints().empty()) {
    out << "no checkpoints\n";
    return;
  }
  out << absl::StreamFormat("%10s %14s %10s  %-21s %s\n", "STEP", "TOKENS", "SIZE", "WRITTEN",
                            "PATH");
  for (const v1::Checkpoint& item : list.checkpoints()) {
    out << absl::StreamFormat("%10d %14d %10s  %-21s %s", item.step(), item.tokens(),
                              FormatBytes(item.bytes()), TimeText(item.unix_ms()), item.path());
    if (item.best())
      out << absl::StreamFormat("  best (validation loss %.4f)", item.validation_loss());
    if (!item.complete()) out << "  DAMAGED: " << item.problem();
    out << "\n";
  }
}

absl::StatusOr<std::vector<std::string>> PathsToVerify(const std::string& path) {
  if (IsCheckpoint(path)) return std::vector<std::string>{path};
  ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> list, ListCheckpoints(path));
  if (list.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, " is neither a checkpoint nor a directory of them"));
  }
  std::vector<std::string> paths;
  for (const CheckpointInfo& info : list) paths.push_back(info.path);
  return paths;
}

absl::StatusOr<int64_t> FolderBytes(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    bytes += it->file_size(error);
  }
  if (error) {
    return absl::InternalError(absl::StrCat("cannot read ", folder, ": ", error.message()));
  }
  return bytes;
}

// The checkpoint that is meant.
absl::StatusOr<std::string> CheckpointOf(const CheckpointExportArgs& args) {
  const bool is_one = IsCheckpoint(args.checkpoint);
  if (args.best && is_one) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--best: got ", args.checkpoint, ", which is one checkpoint; give its directory"));
  }
  if (is_one) return args.checkpoint;
  ASSIGN_OR_RETURN(const CheckpointInfo taken,
                   args.best ? BestCheckpoint(args.checkpoint) : NewestCheckpoint(args.checkpoint));
  return taken.path;
}

SpecialTokens SpecialTokensOf(const std::string& checkpoint) {
  const auto tokenizer = TokenizerOfCheckpoint(checkpoint);
  if (tokenizer.ok()) return (*tokenizer)->special_tokens();
  log::Warn("the export names no end token: ", tokenizer.status().message());
  return {};
}

// What both kinds of export answer.
template <typename Message>
absl::Status Describe(const std::string& checkpoint, const CheckpointExportArgs& args,
                      Message* result) {
  ASSIGN_OR_RETURN(const int64_t bytes, FolderBytes(args.output_folder));
  result->set_checkpoint(checkpoint);
  result->set_output(args.output_folder);
  result->set_dtype(args.dtype);
  result->set_bytes(bytes);
  return absl::OkStatus();
}

absl::StatusOr<v1::CheckpointExport> Export(const CheckpointExportArgs& args) {
  ASSIGN_OR_RETURN(const std::string checkpoint, CheckpointOf(args));
  if (args.adapter) {
    RETURN_IF_ERROR(ExportAdapter(checkpoint, args.output_folder, args.dtype));
  } else {
    RETURN_IF_ERROR(
        ExportCheckpoint(checkpoint, args.output_folder, args.dtype, SpecialTokensOf(checkpoint)));
  }
  v1::CheckpointExport result;
  result.set_adapter(args.adapter);
  RETURN_IF_ERROR(Describe(checkpoint, args, &result));
  return result;
}

absl::StatusOr<v1::CheckpointMerge> Merge(const CheckpointExportArgs& args, ProgressBar* bar) {
  ASSIGN_OR_RETURN(const std::string checkpoint, CheckpointOf(args));
  ASSIGN_OR_RETURN(
      const MergeResult merged,
      MergeCheckpoint(checkpoint, args.output_folder, args.dtype, SpecialTokensOf(checkpoint),
                      [bar](double fraction) { bar->Draw("merging", fraction); }));
  v1::CheckpointMerge result;
  result.set_matrices(merged.matrices);
  result.set_weights(merged.rounding.weights);
  result.set_undone(merged.rounding.undone);
  result.set_rounding_ratio(merged.rounding.ratio());
  RETURN_IF_ERROR(Describe(checkpoint, args, &result));
  return result;
}

void PrintLoad(const std::string& output, std::ostream& out) {
  out << "load it with: AutoModelForCausalLM.from_pretrained(\"" << output << "\")\n";
}

}  // namespace

int RunCheckpointLs(const std::string& directory, const ToolOutput& output) {
  const absl::StatusOr<std::vector<CheckpointInfo>> list = ListCheckpoints(directory);
  if (!list.ok()) return FailTool(output, list.status());
  v1::CheckpointList message;
  const absl::StatusOr<CheckpointInfo> best = BestCheckpoint(directory);
  for (const CheckpointInfo& info : *list) {
    v1::Checkpoint* added = message.add_checkpoints();
    *added = ToMessage(info);
    added->set_best(best.ok() && best->path == info.path);
    if (added->best()) added->set_validation_loss(best->validation.best_loss);
  }
  if (output.format == ToolFormat::kJson) {
    PrintJson(message, output.out);
  } else {
    PrintTable(message, output.out);
  }
  return ToInt(ExitCode::kOk);
}

int RunCheckpointVerify(const std::string& path, const ToolOutput& output) {
  const absl::StatusOr<std::vector<std::string>> paths = PathsToVerify(path);
  if (!paths.ok()) return FailTool(output, paths.status());
  v1::CheckpointVerifications message;
  absl::Status worst;
  for (const std::string& checkpoint : *paths) {
    const absl::Status status = VerifyCheckpoint(checkpoint);
    worst.Update(status);
    v1::CheckpointVerification* item = message.add_checkpoints();
    item->set_path(checkpoint);
    item->set_intact(status.ok());
    item->set_problem(std::string(status.message().data(), status.message().size()));
    if (output.format == ToolFormat::kJson) continue;
    output.out << checkpoint
               << (status.ok() ? "  intact" : absl::StrCat("  DAMAGED: ", item->problem()))
               << std::endl;
  }
  if (output.format == ToolFormat::kJson) PrintJson(message, output.out);
  return ToInt(ExitCodeOf(worst));
}

int RunCheckpointExport(const CheckpointExportArgs& args, const ToolOutput& output) {
  const absl::StatusOr<v1::CheckpointExport> result = Export(args);
  if (!result.ok()) return FailTool(output, result.status());
  if (output.format == ToolFormat::kJson) {
    PrintJson(*result, output.out);
    return ToInt(ExitCode::kOk);
  }
  output.out << "exported " << result->checkpoint() << " to " << result->output() << " ("
             << (result->adapter() ? "the adapter, " : "") << result->dtype() << ", "
             << FormatBytes(result->bytes()) << ")\n";
  if (result->adapter()) {
    output.out << "load it with: PeftModel.from_pretrained(model, \"" << result->output()
               << "\")\n";
  } else {
    PrintLoad(result->output(), output.out);
  }
  return ToInt(ExitCode::kOk);
}

int RunCheckpointMerge(const CheckpointExportArgs& args, const ToolOutput& output) {
  const absl::StatusOr<v1::CheckpointMerge> result = [&] {
    ProgressBar bar(output);
    return Merge(args, &bar);
  }();
  if (!result.ok()) return FailTool(output, result.status());
  if (output.format == ToolFormat::kJson) {
    PrintJson(*result, output.out);
    return ToInt(ExitCode::kOk);
  }
  output.out << "merged " << result->checkpoint() << " into " << result->output() << " ("
             << result->dtype() << ", " << FormatBytes(result->bytes()) << ")\n"
             << absl::StreamFormat(
                    "rounding to %s: %.3g %% of what the adapter adds to %d matrices (root mean "
                    "square); %d of their %d weights stay as they are without it\n",
                    result->dtype(), 100 * result->rounding_ratio(), result->matrices(),
                    result->undone(), result->weights());
  PrintLoad(result->output(), output.out);
  return ToInt(ExitCode::kOk);
}

}  // namespace terrace
