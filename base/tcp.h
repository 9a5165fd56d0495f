// The one thing that we do with bare TCP. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terrace {

// Opens and closes a connection to a port of this machine. False when nobody listens there.
bool TouchPort(int port);

}  // namespace terrace
