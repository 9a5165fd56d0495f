// The text of render_chats.py, which is part of the program: nothing has to be found at run time.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace terrace {

std::string_view RenderChatsScript();

}  // namespace terrace
