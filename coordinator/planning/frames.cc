// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/frames.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// How many came before the other end was closed.
absl::StatusOr<size_t> ReadFully(int fd, char* to, size_t bytes) {
  size_t have = 0;
  while (have < bytes) {
    const ssize_t got = ::read(fd, to + have, bytes - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "cannot read from the pipe");
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  return have;
}

}  // namespace

absl::Status AppendFrame(const google::protobuf::Message& message, std::string* bytes) {
  const size_t length = message.ByteSizeLong();
  if (static_cast<int64_t>(length) > kFrameBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the programs of this plan take ", length, " bytes, at most ", kFrameBytesMax,
                     " may be passed on; more pipeline stages have fewer layers each"));
  }
  for (size_t i = 0; i < kFrameLengthBytes; ++i) {
    bytes->push_back(static_cast<char>(uint64_t{length} >> (8 * i) & 0xff));
  }
  if (message.AppendToString(bytes)) return absl::OkStatus();
  return absl::InternalError("a message between coordinator and planner cannot be written");
}

int64_t FrameLength(std::string_view bytes) {
  uint64_t length = 0;
  for (size_t i = 0; i < kFrameLengthBytes; ++i) {
    length |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return length <= uint64_t{kFrameBytesMax} ? static_cast<int64_t>(length) : -1;
}

absl::Status ReadFrame(int fd, google::protobuf::Message* message) {
  char head[kFrameLengthBytes];
  ASSIGN_OR_RETURN(const size_t begun, ReadFully(fd, head, sizeof head));
  if (begun == 0) return absl::OutOfRangeError("the other end was closed");
  const int64_t length = begun == sizeof head ? FrameLength({head, sizeof head}) : -1;
  if (length < 0) return absl::DataLossError("no message has this length");
  std::string bytes(static_cast<size_t>(length), '\0');
  ASSIGN_OR_RETURN(const size_t have, ReadFully(fd, bytes.data(), bytes.size()));
  if (have == bytes.size() && message->ParseFromString(bytes)) return absl::OkStatus();
  return absl::DataLossError("a message was cut off");
}

absl::Status WriteFrame(int fd, const google::protobuf::Message& message) {
  std::string bytes;
  RETURN_IF_ERROR(AppendFrame(message, &bytes));
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const ssize_t written = ::write(fd, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, "cannot write to the pipe");
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace terrace
