// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/output.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "base/exit_code.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {

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
