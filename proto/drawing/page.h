// The frame that all pages share: one file without scripts or links, for a laptop, a phone and
// paper. Wide things scroll within the page where it is narrow, and shrink on paper.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace terrace {

// All up to the first element of the body. What is inside is well-formed XML.
std::string PageStart(std::string_view title);
std::string PageEnd();

// A picture or table that may be wider than a phone.
std::string Wide(std::string_view markup);
std::string Code(std::string_view text);  // <code>, escaped

}  // namespace terrace
