// The alphabet of byte-level tokenizers: every byte as a printable character (GPT-2's
// bytes_to_unicode).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace terrace::tokenizer_json {

// The bytes that `token` stands for; nullopt when it is not written in the alphabet.
std::optional<std::string> BytesOfToken(std::string_view token);

}  // namespace terrace::tokenizer_json
