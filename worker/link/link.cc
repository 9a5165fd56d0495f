// SPDX-License-Identifier: Apache-2.0
#include "worker/link/link.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr int kListenBacklog = 4;
constexpr size_t kPrefixBytes = 4;

absl::Status Failed(std::string_view what, std::string_view path, int error) {
  return absl::UnavailableError(
      absl::StrCat(Absl(what), " ", Absl(path), ": ", std::strerror(error)));
}

// A socket's path may have 107 characters, a run directory more: the address goes through the
// folder's descriptor.
struct SocketAddress {
  UniqueFd folder;
  sockaddr_un address = {};

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

absl::StatusOr<SocketAddress> ResolveAddress(std::string_view path) {
  const std::filesystem::path file(path);
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  SocketAddress result;
  result.folder = UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!result.folder.valid()) return Failed("cannot open the folder of socket", path, errno);
  const std::string name =
      absl::StrCat("/proc/self/fd/", result.folder.get(), "/", file.filename().string());
  if (name.size() >= sizeof result.address.sun_path) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket name '", file.filename().string(), "' is too long"));
  }
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path, name.data(), name.size());
  return result;
}

UniqueFd NewSocket() { return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

std::array<char, kPrefixBytes> EncodeLength(uint32_t length) {
  return {static_cast<char>(length), static_cast<char>(length >> 8),
          static_cast<char>(length >> 16), static_cast<char>(length >> 24)};
}

uint32_t DecodeLength(std::span<const char, kPrefixBytes> prefix) {
  uint32_t length = 0;
  for (int i = kPrefixBytes - 1; i >= 0; --i)
    length = length << 8 | static_cast<uint8_t>(prefix[i]);
  return length;
}

absl::Status SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return absl::UnavailableError(absl::StrCat("link: ", std::strerror(errno)));
    bytes.remove_prefix(sent);
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int fd, std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t received = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) return absl::UnavailableError(absl::StrCat("link: ", std::strerror(errno)));
    if (received == 0) return absl::UnavailableError("link: the peer closed the connection");
    bytes = bytes.subspan(received);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LinkConnection::Send(const v1::LinkMessage& message) {
  const size_t length = message.ByteSizeLong();
  if (length > kMaxLinkMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("link: a message of ", length, " bytes, the limit is ", kMaxLinkMessageBytes));
  }
  const auto prefix = EncodeLength(static_cast<uint32_t>(length));
  std::string frame(prefix.begin(), prefix.end());
  if (!message.AppendToString(&frame))
    return absl::InternalError("link: cannot serialise a message");
  absl::MutexLock lock(&send_mutex_);
  return SendAll(fd_.get(), frame);
}

absl::StatusOr<v1::LinkMessage> LinkConnection::Receive() {
  std::array<char, kPrefixBytes> prefix;
  RETURN_IF_ERROR(ReceiveAll(fd_.get(), prefix));
  const uint32_t length = DecodeLength(prefix);
  if (length > kMaxLinkMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("link: the peer announces ", length,
                                                   " bytes, the limit is ", kMaxLinkMessageBytes));
  }
  std::string bytes(length, '\0');
  RETURN_IF_ERROR(ReceiveAll(fd_.get(), std::span<char>(bytes)));
  v1::LinkMessage message;
  if (!message.ParseFromString(bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("link: a message of ", length, " bytes is malformed"));
  }
  return message;
}

void LinkConnection::Shutdown() { ::shutdown(fd_.get(), SHUT_RDWR); }

absl::StatusOr<LinkListener> LinkListener::Listen(std::string_view path) {
  ASSIGN_OR_RETURN(const SocketAddress address, ResolveAddress(path));
  UniqueFd fd = NewSocket();
  if (!fd.valid()) return Failed("cannot create socket", path, errno);
  ::unlink(address.address.sun_path);
  if (::bind(fd.get(), address.get(), sizeof address.address) != 0 ||
      ::listen(fd.get(), kListenBacklog) != 0) {
    return Failed("cannot listen on", path, errno);
  }
  return LinkListener(std::move(fd));
}

absl::StatusOr<std::unique_ptr<LinkConnection>> LinkListener::Accept() {
  while (true) {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.valid()) return std::make_unique<LinkConnection>(std::move(fd));
    if (errno != EINTR && errno != ECONNABORTED) {
      return absl::UnavailableError(absl::StrCat("link: accept: ", std::strerror(errno)));
    }
  }
}

// Not close(): a thread may be blocked in Accept, and the descriptor's number must not be reused
// under it.
void LinkListener::Close() { ::shutdown(fd_.get(), SHUT_RDWR); }

absl::StatusOr<std::unique_ptr<LinkConnection>> DialLink(std::string_view path) {
  ASSIGN_OR_RETURN(const SocketAddress address, ResolveAddress(path));
  UniqueFd fd = NewSocket();
  if (!fd.valid()) return Failed("cannot create socket", path, errno);
  int result;
  do {
    result = ::connect(fd.get(), address.get(), sizeof address.address);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return Failed("nobody listens on", path, errno);
  return std::make_unique<LinkConnection>(std::move(fd));
}

int64_t LastStep(const v1::LinkMessage& message) {
  int64_t step = 0;
  for (const v1::JobEvent& event : message.events()) step = std::max(step, event.step().step());
  return step;
}

}  // namespace terrace
