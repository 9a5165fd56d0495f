// Messages over a pipe: eight bytes of length, little-endian, then the message.
//
// Thread-safe: no state. The ends are the caller's.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace terrace {

// Of one message: what protobuf can read.
inline constexpr int64_t kFrameBytesMax = int64_t{2'000} << 20;
inline constexpr size_t kFrameLengthBytes = 8;

// With its length before it. RESOURCE_EXHAUSTED beyond kFrameBytesMax.
absl::Status AppendFrame(const google::protobuf::Message& message, std::string* bytes);

// The length that the first kFrameLengthBytes of `bytes` tell; -1 when it is none.
int64_t FrameLength(std::string_view bytes);

// Blocking. OUT_OF_RANGE: the other end was closed before a message began.
absl::Status ReadFrame(int fd, google::protobuf::Message* message);
absl::Status WriteFrame(int fd, const google::protobuf::Message& message);

}  // namespace terrace
