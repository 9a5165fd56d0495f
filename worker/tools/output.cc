// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/output.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/exit_code.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr int kBarCells = 24;

}  // namespace

ProgressBar::~ProgressBar() {
  if (drawn_) output_.err << "\r\x1b[K" << std::flush;
}

void ProgressBar::Draw(std::string_view text, double fraction) {
  if (!output_.err_is_terminal || output_.format == ToolFormat::kJson) return;
  const int full = static_cast<int>(fraction * kBarCells);
  output_.err << "\r\x1b[K" << text << " [" << std::string(full, '#')
              << std::string(kBarCells - full, '.') << "] " << static_cast<int>(fraction * 100)
              << " %" << std::flush;
  drawn_ = true;
}

void PrintJson(const google::protobuf::Message& message, std::ostream& out) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  // Fails on a malformed Any only, and there is none in these messages.
  if (google::protobuf::util::MessageToJsonString(message, &json, options).ok()) {
    out << json << std::endl;
  }
}

int FailTool(const ToolOutput& output, const absl::Status& status) {
  const std::string message = CleanText(Std(status.message()));
  if (output.format == ToolFormat::kJson) {
    const nlohmann::ordered_json json = {
        {"error", {{"code", absl::StatusCodeToString(status.code())}, {"message", message}}}};
    output.out << json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
               << std::endl;
  } else {
    output.err << "terrace: " << message << std::endl;
  }
  return ToInt(ExitCodeOf(status));
}

}  // namespace terrace
