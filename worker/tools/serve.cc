// terrace-rank serve: answers POST /v1/completions and /v1/chat/completions as OpenAI's API does,
// from one checkpoint, so that whatever asks such a server (lm-evaluation-harness, for one) can ask
// this one.
//
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/http/http_server.h"
#include "base/status_macros.h"
#include "base/stop_signals.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"
#include "worker/data/chat/chat_renderer.h"
#include "worker/rank/environment.h"
#include "worker/rank/program_file.h"
#include "worker/tools/checkpoint_vm.h"
#include "worker/tools/completion_answer.h"
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
  std::string chat_template, tokenizer;  // "": the checkpoint's
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

// Renders conversations on a thread of its own: a template takes a while. Borrows the renderer.
class Renderings {
 public:
  using Then = std::function<void(absl::StatusOr<std::string>)>;  // called on that thread

  explicit Renderings(ChatRenderer* renderer) : renderer_(*renderer), thread_([this] { Run(); }) {}
  ~Renderings() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

  void Add(std::string line, Then then) {
    constexpr size_t kWaitingMax = 256;
    {
      absl::MutexLock lock(&mutex_);
      if (waiting_.size() < kWaitingMax) {
        waiting_.emplace_back(std::move(line), std::move(then));
        return;
      }
    }
    then(absl::ResourceExhaustedError(kTooMany));
  }

  static constexpr char kTooMany[] = "too many requests wait already: ask again later";

 private:
  void Run() {
    const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || !waiting_.empty();
    };
    for (;;) {
      std::pair<std::string, Then> next;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&some));
        if (stopping_) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
      absl::StatusOr<LineText> text = renderer_.Render(next.first);
      next.second(text.ok() ? absl::StatusOr<std::string>(std::move(text->text)) : text.status());
    }
  }

  ChatRenderer& renderer_;
  absl::Mutex mutex_;
  std::deque<std::pair<std::string, Then>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// From requests to completions and back.
class Routes {
 public:
  Routes(std::string model, const CompletionLimits& limits, const Tokenizer& tokenizer,
         Completions* completions, bool has_template, ChatRenderer* renderer)
      : model_(std::move(model)),
        limits_(limits),
        tokenizer_(tokenizer),
        completions_(*completions),
        has_template_(has_template),
        renderings_(renderer) {}

  void Answer(const HttpRequest& request, HttpServer::Reply reply) {
    if (request.path == "/health") return reply({.body = "ok\n"});
    if (request.path == "/v1/models") return reply(JsonResponse(200, Models()));
    const bool chat = request.path == "/v1/chat/completions";
    if (!chat && request.path != "/v1/completions") {
      return reply(
          ErrorResponse(404, absl::StrCat(CleanLine(request.path),
                                          ": is not served; /v1/completions, "
                                          "/v1/chat/completions, /v1/models and /health are")));
    }
    if (request.method != "POST")
      return reply(ErrorResponse(405, request.path + ": takes POST with a JSON object"));
    if (chat && !has_template_)
      return reply(ErrorResponse(400,
                                 "the checkpoint has no chat template: start the server with "
                                 "--chat-template"));
    if (chat) return AnswerChat(request.body, std::move(reply));
    auto read = ReadCompletionRequest(request.body, tokenizer_, limits_);
    if (!read.ok()) return reply(Refused(read.status()));
    Submit(*std::move(read), /*chat=*/false, reply);
  }

 private:
  std::string Models() const {
    const nlohmann::json model = {{"id", model_}, {"object", "model"}, {"owned_by", "terrace"}};
    return nlohmann::json({{"object", "list"}, {"data", {model}}}).dump() + "\n";
  }

  static HttpResponse Refused(const absl::Status& status) {
    const int code = absl::IsInvalidArgument(status)      ? 400
                     : absl::IsResourceExhausted(status)  ? 429
                     : absl::IsFailedPrecondition(status) ? 501
                                                          : 503;
    return ErrorResponse(code, std::string(status.message()));
  }

  void AnswerChat(const std::string& body, const HttpServer::Reply& reply) {
    const auto chat = ReadChatRequest(body);
    if (!chat.ok()) return reply(Refused(chat.status()));
    renderings_.Add(chat->line, [this, chat = *chat, reply](absl::StatusOr<std::string> text) {
      if (!text.ok()) return reply(Refused(text.status()));
      auto read = ReadAnswerRequest(chat, *text, tokenizer_, limits_);
      if (!read.ok()) return reply(Refused(read.status()));
      Submit(*std::move(read), /*chat=*/true, reply);
    });
  }

  void Submit(const CompletionRequest& request, bool chat, const HttpServer::Reply& reply) {
    const AnswerHead head = {.chat = chat,
                             .id = absl::StrCat(chat ? "chatcmpl-" : "cmpl-", ++requests_),
                             .created_unix = NowUnix(),
                             .model = model_};
    const auto stream = std::make_shared<HttpStream>();
    const absl::Status taken = completions_.Submit(
        request, request.stream ? InParts(request, head, stream) : Whole(request, head, reply));
    if (!taken.ok()) return reply(Refused(taken));
    if (!request.stream) return;
    reply({.content_type = "text/event-stream",
           .headers = {{"Cache-Control", "no-cache"}},
           .stream = stream});
  }

  Completions::Listener Whole(const CompletionRequest& request, const AnswerHead& head,
                              const HttpServer::Reply& reply) const {
    return {.reply = [=, this](absl::StatusOr<std::vector<Choice>> choices) {
      if (!choices.ok()) return reply(ErrorResponse(503, std::string(choices.status().message())));
      reply(JsonResponse(200, AnswerJson(head, request, *choices, tokenizer_)));
    }};
  }

  Completions::Listener InParts(const CompletionRequest& request, const AnswerHead& head,
                                const std::shared_ptr<HttpStream>& stream) const {
    return {.reply =
                [=](absl::StatusOr<std::vector<Choice>> choices) {
                  if (!choices.ok()) {
                    stream->Write(ErrorEvent(std::string(choices.status().message())));
                  } else {
                    if (request.usage) stream->Write(UsageEvent(head, request, *choices));
                    stream->Write(LastEvent());
                  }
                  stream->End();
                },
            .part =
                [=, this](const ChoicePart& part) {
                  return stream->Write(PartEvent(head, part, tokenizer_));
                }};
  }

  const std::string model_;
  const CompletionLimits limits_;
  const Tokenizer& tokenizer_;
  Completions& completions_;
  const bool has_template_;
  std::atomic<int64_t> requests_ = 0;
  Renderings renderings_;  // the first to end: what it calls uses all of the above
};

std::string NameOf(const std::string& checkpoint) {
  const std::filesystem::path path = std::filesystem::absolute(checkpoint).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

absl::Status Serve(const ServeOptions& options) {
  // Before other threads exist, so that these do not take the signals.
  ASSIGN_OR_RETURN(StopSignals signals, StopSignals::Block(/*watch_parent=*/true));
  ASSIGN_OR_RETURN(const auto tokenizer, TokenizerFor(options.checkpoint, options.tokenizer));
  ASSIGN_OR_RETURN(const auto ready,
                   CheckpointVm::Open(options.program, options.checkpoint, "score"));
  ASSIGN_OR_RETURN(GrowingTexts texts, GrowingTexts::Create(ready->program(), &ready->vm()));
  Completions completions(&texts, *tokenizer);
  const CompletionLimits limits = {.max_length = texts.max_length(),
                                   .vocabulary = ready->program().rules().vocabulary()};
  ASSIGN_OR_RETURN(const v1::JobSpec spec, SpecOfCheckpoint(options.checkpoint));
  ASSIGN_OR_RETURN(ChatTemplate chat,
                   TemplateOfCheckpoint(options.checkpoint, spec.data(), options.tokenizer,
                                        options.chat_template));
  const bool has_template = !chat.texts.empty();
  ChatRenderer renderer(std::move(chat),
                        {.finds_special_tokens = tokenizer->finds_special_tokens(), .asks = true},
                        nullptr);
  Routes routes(NameOf(options.checkpoint), limits, *tokenizer, &completions, has_template,
                &renderer);
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
  serve->add_option("--chat-template", options->chat_template, "Template (.jinja)");
  serve->add_option("--tokenizer", options->tokenizer, "bytes, tokenizer.json or *.model");
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
