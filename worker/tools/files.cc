// terrace-rank tokenize, data and ckpt: their command lines. The work is in tokenize.h, data.h and
// checkpoint.h.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "worker/tools/checkpoint.h"
#include "worker/tools/data.h"
#include "worker/tools/tokenize.h"
#include "worker/tools/tools.h"

namespace terrace {
namespace {

// Everything that the options of the tools are stored in; lives as long as their callbacks.
struct FileOptions {
  std::string output = "table";
  std::string path;
  TokenizeArgs tokenize;
  DataArgs data;
  CheckpointExportArgs exported;

  ToolOutput tool_output() const {
    return {.format = output == "json" ? ToolFormat::kJson : ToolFormat::kTable,
            .out = std::cout,
            .err = std::cerr,
            .err_is_terminal = ::isatty(STDERR_FILENO) == 1};
  }
};

using Options = std::shared_ptr<FileOptions>;

CLI::App* AddTool(CLI::App* app, const char* name, const char* description,
                  const Options& options) {
  CLI::App* tool = app->add_subcommand(name, description);
  tool->add_option("-o", options->output, "table or json")->check(CLI::IsMember({"table", "json"}));
  return tool;
}

void AddTokenize(CLI::App* app, const Options& options, int* exit_code) {
  CLI::App* tool = AddTool(app, "tokenize", "Turn text files into a token file", options);
  TokenizeArgs& args = options->tokenize;
  tool->add_option("--tokenizer", args.tokenizer, "bytes, tokenizer.json or *.model")->required();
  tool->add_option("--output", args.output_path, "Token file to write")->required();
  tool->add_option("--cache", args.cache, "Token cache to use and keep");
  tool->add_option("--chat-template", args.chat_template,
                   "A .jinja file in place of the tokenizer's chat template");
  tool->add_option("--format", args.format, "llmc or raw")->check(CLI::IsMember({"llmc", "raw"}));
  tool->add_option("files", args.files, ".txt or .jsonl files, also .gz and .zst")->required();
  tool->callback([options, exit_code] {
    *exit_code = RunTokenizeTool(options->tokenize, options->tool_output());
  });
}

void AddData(CLI::App* app, const Options& options, int* exit_code) {
  CLI::App* tool = AddTool(app, "data", "Show what a job is trained on", options);
  DataArgs& args = options->data;
  tool->add_option("--request", args.request, "File that terrace-coordinator data-request wrote")
      ->required();
  tool->add_option("--rows", args.rows, "Rows to show")->check(CLI::Range(0, 10'000));
  tool->add_option("--steps", args.steps, "Steps to look at")->check(CLI::Range(1, 1'000'000));
  tool->callback(
      [options, exit_code] { *exit_code = RunDataTool(options->data, options->tool_output()); });
}

void AddExportOptions(CLI::App* command, CheckpointExportArgs* args) {
  command->add_option("checkpoint", args->checkpoint, "Checkpoint folder, or a directory of them")
      ->required();
  command->add_option("--output", args->output_folder, "Folder to write")->required();
  command->add_option("--dtype", args->dtype, "f32, bf16 or f16")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  command->add_flag("--best", args->best, "Of a directory the one of the best evaluation");
}

void AddCheckpoint(CLI::App* app, const Options& options, int* exit_code) {
  CLI::App* ckpt = app->add_subcommand("ckpt", "List, verify, export and merge checkpoints");
  ckpt->require_subcommand(1);
  CLI::App* ls = AddTool(ckpt, "ls", "List the checkpoints of a directory", options);
  ls->add_option("directory", options->path, "Checkpoint directory")->required();
  ls->callback([options, exit_code] {
    *exit_code = RunCheckpointLs(options->path, options->tool_output());
  });
  CLI::App* verify = AddTool(ckpt, "verify", "Read every byte and compare checksums", options);
  verify->add_option("checkpoint", options->path, "Checkpoint folder, or a directory of them")
      ->required();
  verify->callback([options, exit_code] {
    *exit_code = RunCheckpointVerify(options->path, options->tool_output());
  });
  CLI::App* exported = AddTool(ckpt, "export", "Write a folder that transformers loads", options);
  CheckpointExportArgs& args = options->exported;
  exported->add_flag("--adapter", args.adapter, "The adapter alone, for PEFT");
  exported->callback([options, exit_code] {
    *exit_code = RunCheckpointExport(options->exported, options->tool_output());
  });
  CLI::App* merge = AddTool(ckpt, "merge", "Merge an adapter into its model", options);
  merge->callback([options, exit_code] {
    *exit_code = RunCheckpointMerge(options->exported, options->tool_output());
  });
  for (CLI::App* command : {exported, merge}) AddExportOptions(command, &args);
}

}  // namespace

void AddFileTools(CLI::App* app, int* exit_code) {
  const auto options = std::make_shared<FileOptions>();
  AddTokenize(app, options, exit_code);
  AddData(app, options, exit_code);
  AddCheckpoint(app, options, exit_code);
}

}  // namespace terrace
