// SPDX-License-Identifier: Apache-2.0
#include "proto/clean_strings.h"

#include <vector>

#include "base/utf8.h"
#include "google/protobuf/descriptor.h"

namespace terrace {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void CleanField(const Reflection& reflection, const FieldDescriptor* field, Message* message) {
  if (!field->is_repeated()) {
    const std::string text = reflection.GetString(*message, field);
    reflection.SetString(message, field, CleanLine(text));
    return;
  }
  for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
    const std::string text = reflection.GetRepeatedString(*message, field, i);
    reflection.SetRepeatedString(message, field, i, CleanLine(text));
  }
}

}  // namespace

void CleanStrings(Message* message) {
  const Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->type() == FieldDescriptor::TYPE_STRING) CleanField(reflection, field, message);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      CleanStrings(reflection.MutableMessage(message, field));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
      CleanStrings(reflection.MutableRepeatedMessage(message, field, i));
    }
  }
}

}  // namespace terrace
