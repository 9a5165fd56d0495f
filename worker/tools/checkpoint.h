// terrace-rank ckpt ls | verify | export | merge. Exit codes: 0 done, 1 failure, 3 not found,
// 4 damaged or wrong input, 5 full disk.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "worker/tools/output.h"

namespace terrace {

// The checkpoints of a directory, oldest step first; damaged ones are listed with what is wrong.
int RunCheckpointLs(const std::string& directory, const ToolOutput& output);

// `path`: one checkpoint, or a directory of them (then all).
int RunCheckpointVerify(const std::string& path, const ToolOutput& output);

struct CheckpointExportArgs {
  std::string checkpoint;     // one, or a directory of them (then the newest complete one)
  std::string output_folder;  // must not exist, or be empty
  std::string dtype = "f32";  // "f32", "bf16", "f16"
  bool best = false;          // of a directory the one of the best evaluation instead
  bool adapter = false;       // the adapter alone, for PEFT; merging has no use for it
};
int RunCheckpointExport(const CheckpointExportArgs& args, const ToolOutput& output);
// The model with its adapter in it. Says what rounding made of it.
int RunCheckpointMerge(const CheckpointExportArgs& args, const ToolOutput& output);

}  // namespace terrace
