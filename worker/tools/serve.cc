// terrace-rank serve: answers POST /v1/completions as OpenAI's API does, from one checkpoint, so
// that whatever asks such a server (lm-evaluation-harness, for one) can ask this one.
//
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/http/http_server.h"
#include "base/status_macros.h"
#include "base/stop_signals.h"
#include "nlohmann/json.hpp"
#include "worker/rank/environment.h"
#include "worker/rank/program_file.h"
#include "worker/tools/checkpoint_vm.h"
#include "worker/tools/completion_request.h"
#include "worker/tools/completions.h"
#include "worker/tools/growing_texts.h"
#include "worker/tools/output.h"
#include "worker/tools/tools.h"
#include "worker/train/checkpoint_tokenizer.h"

namespace terrace {
namespace {

struct ServeOptions {
  std::string program, checkpoint;
  HttpListen listen;
  std::string output = "text";
};

int64_t NowUnix() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

HttpResponse JsonResponse(int code, std::string body) {
  return {.code = code, .content_type = "application/json", .body = std::move(body)};
}
HttpResponse ErrorResponse(int code, std::string_view message) {
  return JsonResponse(
      code, CompletionErrorJson(message, code < 500 ? "invalid_request_error" : "server_error"));
}

// From requests to completions and back.
class Routes {
 public:
  Routes(std::string model, const CompletionLimits& limits, const Tokenizer& tokenizer,
         Completions* completions)
      : model_(std::move(model)),
        limits_(limits),
        tokenizer_(tokenizer),
        completions_(*completions) {}

  void Answer(const HttpRequest& request, HttpServer::Reply reply) {
    if (request.path == "/health") return reply({.body = "ok\n"});
    if (request.path == "/v1/models") return reply(JsonResponse(200, Models()));
    if (request.path != "/v1/completions")
      return reply(ErrorResponse(404, absl::StrCat(request.path,
                                                   ": is not served; /v1/completions, /v1/models "
                                                   "and /health are")));
    if (request.method != "POST")
      return reply(ErrorResponse(405, "/v1/completions: takes POST with a JSON object"));
    Complete(request, std::move(reply));
  }

 private:
  std::string Models() const {
    const nlohmann::json model = {{"id", model_}, {"object", "model"}, {"owned_by", "terrace"}};
    return nlohmann::json({{"object", "list"}, {"data", {model}}}).dump() + "\n";
  }

  void Complete(const HttpRequest& request, HttpServer::Reply reply) {
    auto read = ReadCompletionRequest(request.body, tokenizer_, limits_);
    if (!read.ok()) return reply(ErrorResponse(400, std::string(read.status().message())));
    const CompletionRequest asked = *read;
    const std::string id = absl::StrCat("cmpl-", ++requests_);
    const bool taken = completions_.Submit(
        *std::move(read), [this, asked, id, reply](absl::StatusOr<std::vector<Choice>> choices) {
          if (!choices.ok())
            return reply(ErrorResponse(503, std::string(choices.status().message())));
          reply(JsonResponse(200, CompletionJson(asked,
                                                 {.id = id,
                                                  .created_unix = NowUnix(),
                                                  .model = model_,
                                                  .choices = *std::move(choices)},
                                                 tokenizer_)));
        });
    if (!taken) reply(ErrorResponse(429, "too many requests wait already: ask again later"));
  }

  const std::string model_;
  const CompletionLimits limits_;
  const Tokenizer& tokenizer_;
  Completions& completions_;
  std::atomic<int64_t> requests_ = 0;
};

std::string NameOf(const std::string& checkpoint) {
  const std::filesystem::path path = std::filesystem::absolute(checkpoint).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

absl::Status Serve(const ServeOptions& options) {
  // Before other threads exist, so that these do not take the signals.
  ASSIGN_OR_RETURN(StopSignals signals, StopSignals::Block(/*watch_parent=*/true));
  ASSIGN_OR_RETURN(const auto tokenizer, TokenizerOfCheckpoint(options.checkpoint));
  ASSIGN_OR_RETURN(const auto ready,
                   CheckpointVm::Open(options.program, options.checkpoint, "score"));
  ASSIGN_OR_RETURN(GrowingTexts texts, GrowingTexts::Create(ready->program(), &ready->vm()));
  Completions completions(&texts, *tokenizer);
  const CompletionLimits limits = {.max_length = texts.max_length(),
                                   .vocabulary = ready->program().rules().vocabulary()};
  Routes routes(NameOf(options.checkpoint), limits, *tokenizer, &completions);
  ASSIGN_OR_RETURN(
      const auto server,
      HttpServer::Start(options.listen, [&](const HttpRequest& request, HttpServer::Reply reply) {
        routes.Answer(request, std::move(reply));
      }));
  std::cerr << "terrace: serves " << NameOf(options.checkpoint) << " at port " << server->port()
            << ": " << texts.count() << " texts side by side, of up to " << texts.max_length()
            << " tokens\n";
  std::thread waits([&] {
    signals.Wait();
    completions.Stop();
  });
  const absl::Status status = completions.Run();
  // The program failed while no signal has come: the thread waits for one that will.
  if (!status.ok()) kill(getpid(), SIGTERM);
  waits.join();
  return status;
}

int Run(const ServeOptions& options, char** argv) {
  if (const auto program = ReadProgram(options.program, ""); program.ok())
    RestartWithEnvironment(argv, std::max<int>(1, (*program)->threads()), false);
  const absl::Status status = Serve(options);
  if (status.ok()) return 0;
  return FailTool({.format = options.output == "json" ? ToolFormat::kJson : ToolFormat::kTable,
                   .out = std::cout,
                   .err = std::cerr},
                  status);
}

}  // namespace

void AddServeTool(CLI::App* app, char** argv, int* exit_code) {
  auto options = std::make_shared<ServeOptions>();  // lives as long as the callback
  options->listen = {.option = "--listen",
                     .insecure_option = "--insecure",
                     .readers = "everybody may use the model",
                     .address = "127.0.0.1:8000",
                     .body_bytes_max = 4 << 20};
  CLI::App* serve = app->add_subcommand("serve", "Answer requests for completions");
  serve->add_option("--program", options->program, "Program that generates and scores")->required();
  serve->add_option("--checkpoint", options->checkpoint, "Checkpoint folder")->required();
  serve->add_option("--listen", options->listen.address, "host:port; port 0 takes a free one");
  serve->add_flag("--insecure", options->listen.insecure, "Plain HTTP for other machines");
  serve->add_option("--tls-cert", options->listen.tls_cert, "Certificate, PEM");
  serve->add_option("--tls-key", options->listen.tls_key, "Its key, PEM");
  serve->add_option("--tls-ca", options->listen.tls_ca, "Authority of clients' certificates, PEM");
  serve->add_option("-o", options->output, "Of errors: text or json")
      ->check(CLI::IsMember({"text", "json"}));
  serve->callback([options, argv, exit_code] { *exit_code = Run(*options, argv); });
}

}  // namespace terrace
