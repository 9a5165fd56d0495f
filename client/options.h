// What every command of the CLI is told. Plain values, filled by main.cc.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/run_log/run_log.h"

namespace terrace {

enum class Output { kTable, kJson };

struct GlobalOptions {
  std::string coordinator = "127.0.0.1:7070";
  bool coordinator_given = false;  // by flag or TERRACE_COORDINATOR
  Output output = Output::kTable;
  std::string tls_ca, tls_cert, tls_key;  // paths; empty tls_ca: no TLS
  std::string token_file;                 // empty: no token

  bool json() const { return output == Output::kJson; }
};

struct RunOptions {
  std::string spec_path;
  std::string state_directory;  // empty: a fresh one under the user's state folder
  RunLogOptions logs;
};
struct JobOptions {
  std::string job;
};
struct WatchOptions {
  std::string job;
  RunLogOptions logs;
};
struct MemoryOptions {
  std::string job;
  bool watch = false;
  std::string html;  // files to write; empty: none
  std::string snapshot;
  std::string by;  // "layer", or empty
};
struct CancelOptions {
  std::vector<std::string> jobs;
  bool arrays = false;  // also all others of the arrays that the jobs are of
  bool force = false;
};
struct PauseOptions {
  std::vector<std::string> jobs;
  bool arrays = false;  // as of CancelOptions
  bool force = false;
  bool wait = false;  // until each is paused
};
struct ResumeOptions {
  std::vector<std::string> jobs;
  bool arrays = false;  // as of CancelOptions
};
struct RequeueOptions {
  std::vector<std::string> jobs;
  bool arrays = false;  // as of CancelOptions
  bool force = false;
};
struct DrainOptions {
  std::string node;  // empty: those that are drained are listed
  bool disable = false;
  bool force = false;
  std::string deadline = "1h";
  bool no_deadline = false;
  bool keep_jobs = false;
  bool until_restart = false;
  std::string reason;
  bool detach = false;
};
struct BackupOptions {
  std::string path;
  bool replace = false;  // a file that is there
};
struct LogsOptions {
  std::string job;
  uint32_t rank = 0;
  bool follow = false;
  int64_t tail_lines = 0;
};
struct TraceOptions {
  std::string job;
  uint32_t rank = 0;
  std::string output_path;  // empty: standard output
};
struct ListOptions {
  bool all = false;
  std::vector<std::string> states;  // "RUNNING"; none: as `all` says
  std::string owner;                // empty: anybody's
  std::optional<int64_t> limit;     // 0: all. Absent: 100 in a table, all as JSON
  int64_t before = 0;               // as ListPageRequest
};
struct SubmitOptions {
  std::string spec_path;
  bool watch = false;
  bool hold = false;  // PAUSED until it is resumed
  // Jobs that must have ended before it starts: with success, in any way, without success.
  std::vector<std::string> after, after_any, after_failed;
  std::vector<std::string> sweeps;  // "train.optimizer.lr=1e-4,3e-4": a job for each combination
  uint32_t running_max = 0;         // of them may hold devices at a time; 0: any number
};
struct PlanOptions {
  std::string spec_path;
  std::string profile;  // file that `terrace profile -o json` wrote; empty: what is kept
  std::string cluster;  // what-if hardware: "h100x8:128" or the path of a file; empty: what is here
  std::string html, svg, trace;  // files to write; empty: none
  std::string by;                // "layer", or empty
};
struct EvaluateOptions {
  std::string spec_path;
  std::string profile, cluster;  // as of PlanOptions
  std::string html;              // file to write; empty: none
  double seconds = 120;          // after which it ends with what it found
  bool brief = false;            // without the largest sizes of each technique
};
struct ProfileOptions {
  std::string device = "auto";  // "auto": the cores, and the GPUs where there are any
  uint32_t threads = 0;         // of a rank; 0: all cores, half of them and so on
  std::string nvme;             // folder; empty: no drive is measured
  bool refresh = false;
};
struct ExplainOptions {
  std::string spec_or_job;
  std::string sequence;
  std::optional<uint32_t> stage;
  std::string cluster;  // as of PlanOptions
};
struct DataOptions {
  std::string spec;
  int64_t rows = 3;
  int64_t steps = 100;
};
// Files that stand for the checkpoint's own; empty: those.
struct TextOptions {
  std::string chat_template;
  std::string tokenizer;
};
struct GenerateOptions {
  std::string checkpoint;
  TextOptions text;
  std::vector<std::string> prompts;
  bool chat = false;    // they are what a user says
  std::string system;   // said before that
  int64_t samples = 1;  // continuations of each prompt
  int64_t tokens = 200;
  int64_t context = 0;  // tokens of a text, its prompt included; 0: as trained
  std::vector<std::string> stops;
  double temperature = 0.8;
  int64_t top_k = 40;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  int64_t seed = 1;
};
struct ServeOptions {
  std::string checkpoint;
  int64_t context = 0;  // tokens of a text, its prompt included; 0: as trained
  int64_t texts = 4;    // side by side
  TextOptions text;
  std::string listen = "127.0.0.1:8000";
  bool insecure = false;
  std::string tls_cert, tls_key, tls_ca;
};
struct EvalOptions {
  std::string checkpoint;
  std::vector<std::string> data;
  int64_t length = 0;  // tokens of a row; 0: as trained
  int64_t batch = 8;   // rows at a time
  TextOptions text;
};
struct CertsOptions {
  enum Action { kInit, kIssue, kRotate, kList, kToken };
  Action action = kList;
  std::string directory = "certs";
  std::string role;  // "coordinator" or a role of people and workers
  std::string name;  // of the authority, or of whom it is issued to
  std::vector<std::string> hosts;
  bool any_name = false;
  int64_t days = 0;  // 0: of rotate, as many as the certificate before
  // These are options of `certs rotate`.
  std::vector<std::string> files;
  bool all = false;
  int64_t within_days = 0;  // 0: however long they are valid
  bool authority = false;
  bool forget_old = false;
  std::string tokens;  // of token: the file that it is added to
};
struct ToolOptions {
  std::vector<std::string> arguments;  // for terrace-rank, the tool's name first
};

}  // namespace terrace
