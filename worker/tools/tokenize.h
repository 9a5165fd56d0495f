// terrace-rank tokenize: text files into one token file that nanoGPT (raw) or llm.c (with header)
// and data.train read. Exit codes: 0 done, 1 failure, 2 bad argument, 3 not found, 4 bad text or
// tokenizer, 5 full disk.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "worker/tools/output.h"

namespace terrace {

struct TokenizeArgs {
  std::string tokenizer;           // "bytes", tokenizer.json or *.model
  std::string output_path;         // written whole or not at all
  std::string cache;               // token cache to use and keep; "": a temporary one
  std::string chat_template;       // a .jinja file; "": the tokenizer's
  std::string format = "llmc";     // "llmc": 1024-byte header; "raw": nothing but tokens
  std::vector<std::string> files;  // .txt or .jsonl, compressed perhaps (.gz, .zst)
};
int RunTokenizeTool(const TokenizeArgs& args, const ToolOutput& output);

}  // namespace terrace
