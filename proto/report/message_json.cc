// SPDX-License-Identifier: Apache-2.0
#include "proto/report/message_json.h"

#include <google/protobuf/util/json_util.h>

#include <set>
#include <string>

#include "absl/strings/numbers.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

// JSON of protobuf writes 64-bit integers as strings: the names of these fields, of all messages in
// one.
void AddLongIntegers(const google::protobuf::Descriptor* message, std::set<std::string>* names,
                     std::set<const google::protobuf::Descriptor*>* seen) {
  if (!seen->insert(message).second) return;
  for (int i = 0; i < message->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = message->field(i);
    if (field->message_type() != nullptr) AddLongIntegers(field->message_type(), names, seen);
    const auto type = field->cpp_type();
    if (type == google::protobuf::FieldDescriptor::CPPTYPE_INT64 ||
        type == google::protobuf::FieldDescriptor::CPPTYPE_UINT64) {
      names->insert(field->name());
    }
  }
}

void MakeNumbers(const std::set<std::string>& names, Json* json) {
  for (auto& [key, value] : json->items()) {
    if (value.is_structured()) MakeNumbers(names, &value);
    int64_t number = 0;
    if (json->is_object() && value.is_string() && names.contains(key) &&
        absl::SimpleAtoi(value.get<std::string>(), &number)) {
      value = number;
    }
  }
}

}  // namespace

Json MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(message, &text, print);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::set<std::string> names;
  std::set<const google::protobuf::Descriptor*> seen;
  AddLongIntegers(message.GetDescriptor(), &names, &seen);
  MakeNumbers(names, &json);
  return json;
}

}  // namespace terrace
