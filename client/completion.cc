// SPDX-License-Identifier: Apache-2.0
#include "client/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace terrace {
namespace {

std::string Words(const CommandWords& command) {
  std::vector<std::string> words = command.subcommands;
  words.insert(words.end(), command.options.begin(), command.options.end());
  return absl::StrJoin(words, " ");
}

std::string Bash(const std::vector<CommandWords>& commands) {
  std::string names, cases;
  for (const CommandWords& command : commands) {
    absl::StrAppend(&names, names.empty() ? "" : " ", command.name);
    absl::StrAppend(&cases, "    ", command.name, ") words=\"", Words(command), "\" ;;\n");
  }
  return absl::StrCat(
      "_terrace() {\n  local current=\"${COMP_WORDS[COMP_CWORD]}\" words=\"\"\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W \"",
      names,
      "\" -- \"$current\"))\n    return\n  fi\n"
      "  case \"${COMP_WORDS[1]}\" in\n",
      cases,
      "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$current\") $(compgen -f -- "
      "\"$current\"))\n}\n"
      "complete -o filenames -F _terrace terrace\n");
}

std::string Fish(const std::vector<CommandWords>& commands) {
  std::string out;
  for (const CommandWords& command : commands) {
    absl::StrAppend(&out, "complete -c terrace -n __fish_use_subcommand -f -a ", command.name,
                    " -d '", command.description, "'\n");
    for (const std::string& option : command.options) {
      const bool is_long = option.rfind("--", 0) == 0;
      absl::StrAppend(&out, "complete -c terrace -n '__fish_seen_subcommand_from ", command.name,
                      "' ", is_long ? "-l " : "-s ", option.substr(is_long ? 2 : 1), "\n");
    }
    for (const std::string& word : command.subcommands) {
      absl::StrAppend(&out, "complete -c terrace -n '__fish_seen_subcommand_from ", command.name,
                      "' -f -a ", word, "\n");
    }
  }
  return out;
}

}  // namespace

std::string CompletionScript(std::string_view shell, const std::vector<CommandWords>& commands) {
  if (shell == "bash") return Bash(commands);
  if (shell == "zsh")
    return absl::StrCat("autoload -U +X bashcompinit && bashcompinit\n", Bash(commands));
  if (shell == "fish") return Fish(commands);
  return "";
}

}  // namespace terrace
