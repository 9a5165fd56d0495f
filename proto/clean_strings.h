// Makes all text of a message that came over the wire harmless (base/utf8.h), whatever its fields.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "google/protobuf/message.h"

namespace terrace {

// Each string of `message` and of those inside it is one line, as CleanLine() leaves it. Bytes
// fields stay as they are.
void CleanStrings(google::protobuf::Message* message);

}  // namespace terrace
