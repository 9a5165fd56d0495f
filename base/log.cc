// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/log_listener.h"
#include "base/utf8.h"

namespace terrace::log {
namespace {

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& DefaultLogger() {
  static const bool configured = [] {
    Init("terrace", Level::kInfo);
    return true;
  }();
  (void)configured;
  return *spdlog::default_logger_raw();
}

bool initialised = false;

using Listener = std::function<void(std::string_view)>;

struct Listeners {
  absl::Mutex mutex;
  std::shared_ptr<const Listener> one ABSL_GUARDED_BY(mutex);
};

Listeners& TheListeners() {
  static Listeners* const listeners = new Listeners;  // threads may warn until the process ends
  return *listeners;
}

void WriteLine(Level level, std::string_view message) {
  spdlog::logger& logger = initialised ? *spdlog::default_logger_raw() : DefaultLogger();
  logger.log(ToSpdlog(level), CleanLine(message));
}

}  // namespace

void Init(std::string_view component, Level level, std::string_view file) {
  spdlog::sink_ptr sink;
  if (file.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  } else {
    sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(std::string(file));
  }
  auto logger = std::make_shared<spdlog::logger>(std::string(component), sink);
  logger->set_level(ToSpdlog(level));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %n: %v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  initialised = true;
}

Level ParseLevel(std::string_view name) {
  if (name == "debug") return Level::kDebug;
  if (name == "warn") return Level::kWarn;
  if (name == "error") return Level::kError;
  return Level::kInfo;
}

void Write(Level level, std::string_view message) {
  WriteLine(level, message);
  if (level != Level::kWarn) return;
  std::shared_ptr<const Listener> listener;
  {
    absl::MutexLock lock(&TheListeners().mutex);
    listener = TheListeners().one;
  }
  if (listener != nullptr) (*listener)(message);
}

void WarnInLogOnly(std::string_view message) { WriteLine(Level::kWarn, message); }

void ListenToWarnings(std::function<void(std::string_view)> listener) {
  auto one = listener ? std::make_shared<const Listener>(std::move(listener)) : nullptr;
  absl::MutexLock lock(&TheListeners().mutex);
  TheListeners().one = std::move(one);
}

}  // namespace terrace::log
