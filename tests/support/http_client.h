// A client of our HTTP servers on loopback, for tests.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "base/unique_fd.h"

namespace terrace::testing_http {

// `from` is the last number of the client's own address: 127.0.0.<from>.
inline UniqueFd Connect(int port, int from = 1) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  timeval limit{.tv_sec = 20, .tv_usec = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + static_cast<uint32_t>(from));
  const auto* any = reinterpret_cast<const sockaddr*>(&address);
  if (bind(fd.get(), any, sizeof address) != 0) return UniqueFd();
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(fd.get(), any, sizeof address) == 0 ? std::move(fd) : UniqueFd();
}

inline bool Send(const UniqueFd& fd, const std::string& text) {
  return send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

// Until the server closes the connection.
inline std::string Receive(const UniqueFd& fd) {
  std::string answer;
  char part[4096];
  for (ssize_t got = 0; (got = recv(fd.get(), part, sizeof part, 0)) > 0;) {
    answer.append(part, static_cast<size_t>(got));
  }
  return answer;
}

// "GET /metrics": the whole answer, with its headers.
inline std::string Ask(int port, const std::string& request, const std::string& headers = "",
                       int from = 1) {
  const UniqueFd fd = Connect(port, from);
  const bool sent = Send(
      fd, request + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers + "\r\n");
  return sent ? Receive(fd) : "";
}

}  // namespace terrace::testing_http
