// Shell completion scripts, made from the command tree itself, so that they never lag behind it.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

struct CommandWords {
  std::string name;
  std::string description;
  std::vector<std::string> options;  // "--force", "-o"
  std::vector<std::string> subcommands;
};

// `shell`: "bash", "zsh" or "fish". Empty for another one.
std::string CompletionScript(std::string_view shell, const std::vector<CommandWords>& commands);

}  // namespace terrace
