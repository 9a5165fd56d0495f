// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/commands.h"
#include "client/print.h"
#include "client/process.h"

namespace terrace {
namespace {

// With all digits that a reader needs to have the same number.
std::string Exactly(double value) { return absl::StrFormat("%.17g", value); }

// A folder that is removed with its content.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    std::string pattern = (folder / "terrace-XXXXXX").string();
    if (!error && mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The coordinator's compiler makes a program of the checkpoint's model by its subcommand, a rank
// executes it. `arguments`: the rank's, its subcommand first, given a folder that lasts as long.
int WithProgram(const GlobalOptions& global, const std::string& subcommand,
                const std::vector<std::string>& more, const std::string& checkpoint,
                absl::FunctionRef<std::vector<std::string>(const std::string& folder)> arguments) {
  const auto compiler = SiblingProgram("terrace-coordinator");
  if (!compiler.ok()) return Fail(global, compiler.status());
  const auto rank = SiblingProgram("terrace-rank");
  if (!rank.ok()) return Fail(global, rank.status());
  TemporaryFolder folder;
  if (folder.path().empty())
    return Fail(global, absl::PermissionDeniedError(
                            "cannot make a temporary folder; name one with TMPDIR"));
  const std::string program = folder.path() + "/program.pb";
  std::vector<std::string> compile = {subcommand,
                                      "--checkpoint",
                                      checkpoint,
                                      "--output",
                                      program,
                                      "-o",
                                      global.json() ? "json" : "text"};
  compile.insert(compile.end(), more.begin(), more.end());
  const auto compiled = RunToEnd(*compiler, compile);
  if (!compiled.ok()) return Fail(global, compiled.status());
  if (*compiled != 0) return *compiled;
  std::vector<std::string> run = arguments(folder.path());
  run.insert(run.end(), {"--program", program, "--checkpoint", checkpoint});
  const auto status = RunToEnd(*rank, run);
  return status.ok() ? *status : Fail(global, status.status());
}

void AddTo(std::vector<std::string>* arguments, const TextOptions& options) {
  for (const auto& [option, file] : {std::pair("--chat-template", &options.chat_template),
                                     std::pair("--tokenizer", &options.tokenizer)}) {
    if (!file->empty()) arguments->insert(arguments->end(), {option, *file});
  }
}

}  // namespace

int ToolCommand(const GlobalOptions& global, const ToolOptions& options) {
  const auto program = SiblingProgram("terrace-rank");
  if (!program.ok()) return Fail(global, program.status());
  std::vector<std::string> arguments = options.arguments;
  arguments.insert(arguments.end(), {"-o", global.json() ? "json" : "table"});
  return Fail(global, Exec(*program, arguments));
}

int CompilerToolCommand(const GlobalOptions& global, const ToolOptions& options) {
  const auto program = SiblingProgram("terrace-coordinator");
  if (!program.ok()) return Fail(global, program.status());
  std::vector<std::string> arguments = options.arguments;
  arguments.insert(arguments.end(), {"-o", global.json() ? "json" : "text"});
  return Fail(global, Exec(*program, arguments));
}

int GenerateCommand(const GlobalOptions& global, const GenerateOptions& options) {
  for (const auto& [option, texts] :
       {std::pair("--prompt", &options.prompts), std::pair("--stop", &options.stops)}) {
    if (!std::any_of(texts->begin(), texts->end(), [](const auto& text) { return text.empty(); }))
      continue;
    return Fail(global, absl::InvalidArgumentError(absl::StrCat(
                            option, ": got an empty text, must hold at least a character")));
  }
  const auto texts = static_cast<int64_t>(options.prompts.size()) * options.samples;
  constexpr int64_t kTextsMax = 4096;
  if (texts > kTextsMax) {
    return Fail(global, absl::InvalidArgumentError(
                            absl::StrCat("--samples: got ", options.samples, " of each of ",
                                         options.prompts.size(), " prompts, must be at most ",
                                         kTextsMax, " texts in all; ask for fewer at a time")));
  }
  const std::vector<std::string> shape = {"--context", absl::StrCat(options.context), "--texts",
                                          absl::StrCat(texts)};
  return WithProgram(global, "generate-program", shape, options.checkpoint,
                     [&](const std::string& /*folder*/) {
                       std::vector<std::string> arguments = {"generate",
                                                             "--samples",
                                                             absl::StrCat(options.samples),
                                                             "--tokens",
                                                             absl::StrCat(options.tokens),
                                                             "--temperature",
                                                             Exactly(options.temperature),
                                                             "--top-k",
                                                             absl::StrCat(options.top_k),
                                                             "--top-p",
                                                             Exactly(options.top_p),
                                                             "--min-p",
                                                             Exactly(options.min_p),
                                                             "--repetition-penalty",
                                                             Exactly(options.repetition_penalty),
                                                             "--presence-penalty",
                                                             Exactly(options.presence_penalty),
                                                             "--frequency-penalty",
                                                             Exactly(options.frequency_penalty),
                                                             "--seed",
                                                             absl::StrCat(options.seed),
                                                             "-o",
                                                             global.json() ? "json" : "text"};
                       if (options.chat) arguments.push_back("--chat");
                       if (!options.system.empty())
                         arguments.push_back(absl::StrCat("--system=", options.system));
                       AddTo(&arguments, options.text);
                       // In one word each: a text may begin with dashes.
                       for (const std::string& prompt : options.prompts)
                         arguments.push_back(absl::StrCat("--prompt=", prompt));
                       for (const std::string& stop : options.stops)
                         arguments.push_back(absl::StrCat("--stop=", stop));
                       return arguments;
                     });
}

int ServeCommand(const GlobalOptions& global, const ServeOptions& options) {
  const std::vector<std::string> shape = {"--context", absl::StrCat(options.context), "--texts",
                                          absl::StrCat(options.texts), "--scores"};
  const int code = WithProgram(
      global, "generate-program", shape, options.checkpoint, [&](const std::string& /*folder*/) {
        std::vector<std::string> arguments = {"serve", "--listen", options.listen, "-o",
                                              global.json() ? "json" : "text"};
        AddTo(&arguments, options.text);
        if (options.insecure) arguments.push_back("--insecure");
        for (const auto& [option, file] :
             {std::pair("--tls-cert", &options.tls_cert), std::pair("--tls-key", &options.tls_key),
              std::pair("--tls-ca", &options.tls_ca)}) {
          if (!file->empty()) arguments.insert(arguments.end(), {option, *file});
        }
        return arguments;
      });
  // A signal is how a server ends.
  return code == 128 + SIGTERM || code == 128 + SIGINT ? 0 : code;
}

int EvalCommand(const GlobalOptions& global, const EvalOptions& options) {
  const std::vector<std::string> shape = {"--length", absl::StrCat(options.length), "--batch",
                                          absl::StrCat(options.batch)};
  return WithProgram(
      global, "eval-program", shape, options.checkpoint, [&](const std::string& folder) {
        std::vector<std::string> arguments = {"eval", "--cache", folder + "/tokens", "-o",
                                              global.json() ? "json" : "table"};
        for (const std::string& data : options.data)
          arguments.insert(arguments.end(), {"--data", data});
        AddTo(&arguments, options.text);
        return arguments;
      });
}

// The coordinator's program reads the spec, a rank's the data.
int DataCommand(const GlobalOptions& global, const DataOptions& options) {
  const auto reader = SiblingProgram("terrace-coordinator");
  if (!reader.ok()) return Fail(global, reader.status());
  TemporaryFolder folder;
  if (folder.path().empty())
    return Fail(global, absl::PermissionDeniedError(
                            "cannot make a temporary folder; name one with TMPDIR"));
  const std::string request = folder.path() + "/data.pb";
  const auto read = RunToEnd(*reader, {"data-request", "--spec", options.spec, "--request", request,
                                       "-o", global.json() ? "json" : "text"});
  if (!read.ok()) return Fail(global, read.status());
  if (*read != 0) return *read;
  const auto rank = SiblingProgram("terrace-rank");
  if (!rank.ok()) return Fail(global, rank.status());
  const auto status = RunToEnd(
      *rank, {"data", "--request", request, "--rows", absl::StrCat(options.rows), "--steps",
              absl::StrCat(options.steps), "-o", global.json() ? "json" : "table"});
  return status.ok() ? *status : Fail(global, status.status());
}

}  // namespace terrace
