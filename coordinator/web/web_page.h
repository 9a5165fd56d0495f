// The coordinator's web page: its files, and the JSON that they ask for (api.h).
//
// It only shows, but for what needs the operator's token. On loopback a request must name a
// loopback host: else a page of another site, which a browser shows, could read this one by giving
// its own name our address (DNS rebinding).
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "base/http/http_server.h"
#include "coordinator/control/control.h"
#include "coordinator/web/api.h"

namespace terrace {

struct WebPageOptions {
  std::string listen;          // host:port, as it was given
  std::string operator_token;  // for what changes something; empty: nothing can be changed
  std::function<void(const WebChange&)> changed;  // told on the control loop; may be null
};

// `control` is borrowed and must outlive the server that calls it.
HttpServer::Handler WebPage(Control& control, WebPageOptions options);

}  // namespace terrace
