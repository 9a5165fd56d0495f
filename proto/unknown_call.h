// What a coordinator with TLS says, beside UNIMPLEMENTED, of a call that it does not know.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terrace {

inline constexpr char kUnknownCall[] = "this coordinator does not know the call";

}  // namespace terrace
