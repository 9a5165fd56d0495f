// terrace-coordinator: command line in, one of its modes out. Wiring only.
//
// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/command_line.h"
#include "base/exit_code.h"
#include "base/interface_address.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/tcp.h"
#include "base/utf8.h"
#include "coordinator/cli/estimate_tool.h"
#include "coordinator/cli/evaluate_tool.h"
#include "coordinator/cli/import_tool.h"
#include "coordinator/cli/offline.h"
#include "coordinator/cli/plan_files.h"
#include "coordinator/cli/plan_output.h"
#include "coordinator/cli/queue_values.h"
#include "coordinator/cli/what_if.h"
#include "coordinator/control/restore.h"
#include "coordinator/hardware/cluster_file_keys.h"
#include "coordinator/model/presets.h"
#include "coordinator/planning/work.h"
#include "coordinator/prepare/explain.h"
#include "coordinator/prepare/prepare.h"
#include "coordinator/server/metrics.h"
#include "coordinator/server/server.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

struct Options {
  ServeOptions serve;
  RestoreOptions restore;
  std::string log_level = "info";
  std::string spec;
  std::string output = "text";
  std::string sequence;
  std::optional<uint32_t> stage;
  std::string checkpoint;
  std::string profile;
  std::string cluster;
  PlanFiles files;
  std::string by;
  std::string program_file;
  ImportOptions import;
  EstimateOptions estimate;
  EvaluateOptions evaluate;
  EvalProgramOptions eval;
  GenerateProgramOptions generate;
};

// -o json errors are objects on standard output, so that whoever asked for JSON can always parse
// it.
int Exit(const Options& options, const absl::Status& status) {
  if (status.ok()) return 0;
  const std::string message = CleanText(Std(status.message()));
  if (options.output == "json") {
    const nlohmann::json error = {
        {"error", {{"code", absl::StatusCodeToString(status.code())}, {"message", message}}}};
    std::printf("%s\n", error.dump().c_str());
  } else {
    std::fprintf(stderr, "terrace-coordinator: %s\n", message.c_str());
  }
  return ToInt(ExitCodeOf(status));
}

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  print.add_whitespace = true;
  print.always_print_primitive_fields = true;
  std::string json;
  google::protobuf::util::MessageToJsonString(message, &json, print).ok();
  return json;
}

// One object, however many stages there are.
std::string Json(const std::vector<v1::Program>& programs) {
  const auto json = [](std::string* out, const v1::Program& program) { *out += Json(program); };
  return absl::StrCat("{\"programs\": [\n", absl::StrJoin(programs, ",\n", json), "]}\n");
}

// For a person who waits: it may take seconds to find what would fit.
void TellPerson(const std::string& words) {
  if (isatty(STDERR_FILENO) != 1) return;
  std::fprintf(stderr, "terrace-coordinator: it does not fit; trying %s\n", words.c_str());
}

absl::StatusOr<Prepared> PrepareSpec(const Options& options) {
  if (!options.cluster.empty()) return PrepareWhatIf(options.spec, options.cluster, TellPerson);
  return PrepareFile(options.spec, options.profile, TellPerson);
}

// A plan that does not fit is printed too, and why on standard error.
int Plan(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<Prepared> prepared = PrepareSpec(options);
  if (!prepared.ok()) return Exit(options, prepared.status());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const absl::Status written = WritePlanFiles(*prepared, options.files);
  if (!written.ok()) return Exit(options, written);
  std::fputs(
      PlanOutput(*prepared, seconds.count(), options.output == "json", !options.by.empty()).c_str(),
      stdout);
  if (prepared->refusal.ok()) return 0;
  std::fprintf(stderr, "terrace-coordinator: %s\n",
               std::string(prepared->refusal.message()).c_str());
  return ToInt(ExitCodeOf(prepared->refusal));
}

int Explain(const Options& options) {
  const absl::StatusOr<Prepared> prepared = PrepareSpec(options);
  if (!prepared.ok()) return Exit(options, prepared.status());
  if (!prepared->refusal.ok()) return Exit(options, prepared->refusal);
  const auto programs = SelectStage(prepared->programs, options.stage);
  if (!programs.ok()) return Exit(options, programs.status());
  const std::string text = options.output == "json"
                               ? Json(*programs)
                               : ExplainText(prepared->plan.layout(), *programs, options.sequence);
  std::fputs(text.c_str(), stdout);
  return 0;
}

int PrintMetrics(const Options& options) {
  const std::vector<Metric> table = CoordinatorMetricTable();
  const bool json = options.output == "json";
  return std::fputs((json ? MetricTableJson(table) : MetricTableMarkdown(table)).c_str(), stdout) <
         0;
}

int PrintPresets() {
  for (const Preset& preset : Presets()) {
    std::printf("%-16s %12ld parameters\n", std::string(preset.name).c_str(),
                static_cast<long>(preset.parameters));
  }
  return 0;
}

std::string DefaultStateDirectory() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && *state != '\0') return absl::StrCat(state, "/terrace/coordinator");
  if (home != nullptr) return absl::StrCat(home, "/.local/state/terrace/coordinator");
  return "/var/lib/terrace/coordinator";
}

void AddQueueFlags(CLI::App& app, QueueOptions& queue) {
  const auto span = [&app](const char* flag, int64_t least, int64_t& seconds, const char* meaning) {
    const auto read = [flag, least, &seconds](const std::string& text) {
      const std::string wrong = ReadSpan(text, least, &seconds);
      if (!wrong.empty()) throw CLI::ValidationError(flag, wrong);
    };
    app.add_option_function<std::string>(flag, read, meaning)->type_name("TIME");
  };
  span("--time-limit-default", 1, queue.time_limit_default_seconds,
       "time_limit of jobs whose spec has none (12h); none if absent");
  span("--time-limit-max", 1, queue.time_limit_max_seconds,
       "the longest time_limit that a job may ask for, and what it gets without one (7d)");
  span("--priority-age", 0, queue.priority_age_seconds,
       "waiting so long raises a job's priority by 1 (1d); 0s: it does not");
  span("--fair-share-half-life", 0, queue.fair_share_half_life_seconds,
       "after which the devices that a user has had count half (7d); 0s: they do not count");
  app.add_option("--quota-devices", queue.devices_quota,
                 "devices that the jobs of one user may hold together; any number if absent")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--preempt-priority", queue.preempt_priority,
         "a job may take the devices of jobs whose priority is so much lower, which write a "
         "checkpoint and wait again; of none if absent")
      ->check(CLI::Range(2u, 2000u));
  span("--preempt-exempt", 0, queue.preempt_exempt_seconds,
       "that a job has had its devices for before they can be taken (5m)");
  span("--grow-after", 0, queue.grow_after_seconds,
       "that a job with nodes MIN:MAX has had its devices for, and that is left for it to do, "
       "before "
       "it starts again with more workers (1m)");
  const auto read_quotas = [&queue](const std::vector<std::string>& quotas) {
    for (const std::string& text : quotas) {
      const std::string wrong = ReadQuota(text, &queue);
      if (!wrong.empty()) throw CLI::ValidationError("--quota-devices-of", wrong);
    }
  };
  app.add_option_function<std::vector<std::string>>(
         "--quota-devices-of", read_quotas,
         "the same of one user, in place of --quota-devices (alice=16); may be given again")
      ->type_name("USER=N");
  const auto bytes = [&app, &queue](const char* flag, bool of_user, const char* meaning) {
    const auto read = [flag, of_user, &queue](const std::vector<std::string>& quotas) {
      for (const std::string& text : quotas) {
        const std::string wrong = ReadBytesQuota(text, of_user, &queue);
        if (!wrong.empty()) throw CLI::ValidationError(flag, wrong);
      }
    };
    app.add_option_function<std::vector<std::string>>(flag, read, meaning)
        ->type_name(of_user ? "USER:TIER=SIZE" : "TIER=SIZE");
  };
  bytes("--quota-memory", false,
        "memory that the jobs of one user may hold together (host=1TiB; device, host or nvme); may "
        "be given again");
  bytes("--quota-memory-of", true, "the same of one user (alice:nvme=4TiB); may be given again");
}

void AddRoots(CLI::App& app, JobRoots& roots) {
  for (const RootOption& option : RootOptions())
    app.add_option(option.flag, roots.*option.roots, option.meaning);
}

void AddServe(CLI::App& app, ServeOptions& serve) {
  app.add_option("--listen", serve.listen,
                 "host:port or interface:port for clients and workers; port 0: any free")
      ->transform(WithoutInterface)
      ->capture_default_str();
  app.add_option("--port-file", serve.port_file, "file that gets the port taken");
  app.add_option("--state-dir", serve.state_directory, "folder of the store")
      ->capture_default_str();
  app.add_option("--metrics-listen", serve.metrics_listen,
                 "host:port or interface:port of /metrics; none if absent")
      ->transform(WithoutInterface);
  app.add_flag("--metrics-insecure", serve.metrics_insecure, "/metrics off loopback without TLS");
  app.add_option("--web-listen", serve.web_listen,
                 "host:port or interface:port of the web page; none if absent")
      ->transform(WithoutInterface);
  app.add_option("--web-port-file", serve.web_port_file, "file that gets the web page's port");
  app.add_flag("--web-insecure", serve.web_insecure, "the web page off loopback without TLS");
  app.add_option("--web-token-file", serve.web_token_file,
                 "file with the token that may cancel jobs on the web page; nobody may if absent");
  app.add_option("--tls-cert", serve.tls_cert, "PEM certificate of this coordinator");
  app.add_option("--tls-key", serve.tls_key, "PEM key of this coordinator");
  app.add_option("--tls-ca", serve.tls_ca, "PEM certificates of who signs clients and workers");
  app.add_option("--tokens", serve.tokens,
                 "file of people's tokens, as `terrace certs token` writes it");
  app.add_option("--audit-log", serve.audit_log,
                 "file of the calls that changed something; audit.jsonl in the state directory");
  app.add_flag("--insecure", serve.insecure, "listen off loopback without TLS");
  app.add_flag("--exit-with-parent", serve.exit_with_parent, "end when the parent process ends");
  app.add_option("--plan-seconds", serve.plan_seconds, "that one plan may take")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400}))
      ->capture_default_str();
  app.add_option(
         "--plan-memory", serve.plan_memory_bytes,
         "that one plan may take (8GiB); a quarter of what this machine or control group has")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  AddRoots(app, serve.roots);
  AddQueueFlags(app, serve.queue);
}

void AddSpec(CLI::App& app, Options& options) {
  app.add_option("--spec", options.spec, "the job spec")->required();
  app.add_option("-o,--output", options.output, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

void AddOutput(CLI::App& app, Options& options) {
  app.add_option("-o,--output", options.output, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

CLI::App* AddGenerateProgram(CLI::App& app, Options& options) {
  CLI::App* generate =
      app.add_subcommand("generate-program", "compile passes that continue texts by a checkpoint");
  generate->add_option("--checkpoint", options.checkpoint, "folder of the checkpoint")->required();
  generate->add_option("--context", options.generate.context, "tokens of a text; 0: as trained")
      ->check(CLI::Range(0, 1'000'000'000));
  generate->add_option("--texts", options.generate.texts, "continued side by side")
      ->check(CLI::Range(1, 65536));
  generate->add_flag("--scores", options.generate.scores, "with scores of the prompts' tokens");
  generate->add_option("--output", options.program_file, "file of the program")->required();
  generate->add_option("-o", options.output, "of errors")->check(CLI::IsMember({"text", "json"}));
  return generate;
}

CLI::App* AddEvalProgram(CLI::App& app, Options& options) {
  CLI::App* eval = app.add_subcommand("eval-program", "compile the loss of a checkpoint's model");
  eval->add_option("--checkpoint", options.checkpoint, "folder of the checkpoint")->required();
  eval->add_option("--length", options.eval.sequence_length, "tokens of a row; 0: as trained")
      ->check(CLI::Range(0, 1'000'000'000));
  eval->add_option("--batch", options.eval.batch, "rows at a time")->check(CLI::Range(1, 65536));
  eval->add_option("--output", options.program_file, "file of the program")->required();
  eval->add_option("-o", options.output, "of errors")->check(CLI::IsMember({"text", "json"}));
  return eval;
}

CLI::App* AddImport(CLI::App& app, Options& options) {
  CLI::App* import =
      app.add_subcommand("import", "make a job spec of another tool's configuration");
  ImportContext& context = options.import.context;
  import->add_option("--from", options.import.from)
      ->required()
      ->check(CLI::IsMember({"deepspeed", "megatron"}));
  import->add_option("--input", options.import.input, "file, or megatron's flags")->required();
  import->add_option("--name", context.name, "name of the job");
  import->add_option("--model", context.model, "preset or config.json");
  import->add_option("--train", context.train, "training data");
  import->add_option("--sequence-length", context.sequence_length)->check(CLI::PositiveNumber);
  import->add_option("--steps", context.steps)->check(CLI::PositiveNumber);
  import->add_option("--nodes", context.nodes)->check(CLI::PositiveNumber);
  import->add_option("--devices-per-node", context.devices_per_node)->check(CLI::PositiveNumber);
  AddOutput(*import, options);
  return import;
}

CLI::App* AddEstimate(CLI::App& app, Options& options) {
  CLI::App* command = app.add_subcommand("estimate", "memory of a model by the formulas");
  EstimateOptions& estimate = options.estimate;
  constexpr int64_t kMost = int64_t{1} << 24;
  command->add_option("model", estimate.model, "preset, config.json or its folder")->required();
  command->add_option("--sequence-length", estimate.sequence_length)
      ->check(CLI::Range(int64_t{1}, kMost));
  command->add_option("--batch", estimate.batch)->check(CLI::Range(int64_t{1}, kMost));
  command->add_option("--devices", estimate.devices)->check(CLI::Range(int64_t{1}, kMost));
  command->add_option("--lora-rank", estimate.lora_rank)
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  command->add_option("--precision", estimate.precision)->check(CLI::IsMember({"bf16", "fp32"}));
  command->add_option("--optimizer", estimate.optimizer)->check(CLI::IsMember(OptimizerNames()));
  command->add_option("--moments", estimate.moments)->check(CLI::IsMember({"f32", "bf16", "int8"}));
  command->add_option("--gradient", estimate.gradient)->check(CLI::IsMember({"f32", "bf16"}));
  command->add_option("--only", estimate.only)
      ->check(
          CLI::IsMember({"training", "optimizers", "activations", "lora", "qlora", "inference"}));
  AddOutput(*command, options);
  return command;
}

CLI::App* AddEvaluate(CLI::App& app, Options& options) {
  CLI::App* command =
      app.add_subcommand("evaluate", "print what fits here and what techniques cost");
  EvaluateOptions& evaluate = options.evaluate;
  command->add_option("--spec", evaluate.spec, "the job spec")->required();
  command->add_option("--profile", evaluate.profile, "as of plan");
  command->add_option("--cluster", evaluate.cluster, "as of plan")->excludes("--profile");
  command->add_option("--html", evaluate.html, "write a page about it");
  command->add_option("--seconds", evaluate.seconds, "after which it ends with what it found")
      ->check(CLI::Range(1.0, 86'400.0))
      ->capture_default_str();
  command->add_flag("--brief", evaluate.brief, "without the largest sizes of each technique");
  AddOutput(*command, options);
  return command;
}

CLI::App* AddRestore(CLI::App& app, Options& options) {
  CLI::App* restore = app.add_subcommand(
      "restore", "put a copy of the state (terrace backup) in place, while no coordinator runs");
  restore->add_option("file", options.restore.copy, "the copy")->required();
  restore->add_option("--state-dir", options.serve.state_directory, "folder of the store")
      ->capture_default_str();
  restore->add_flag("--replace", options.restore.replace,
                    "move the store that is there to state.db.before-restore");
  AddOutput(*restore, options);
  return restore;
}

int Restore(Options& options) {
  options.restore.state_directory = options.serve.state_directory;
  const absl::StatusOr<Restored> restored = RestoreStore(options.restore);
  if (!restored.ok()) return Exit(options, restored.status());
  if (options.output == "json") {
    std::printf("%s\n", nlohmann::json{{"jobs", restored->jobs},
                                       {"unfinished", restored->unfinished},
                                       {"moved_to", restored->moved_to}}
                            .dump()
                            .c_str());
    return 0;
  }
  std::printf(
      "restored %lld jobs, %lld of them not ended; those that ran go on from their newest "
      "checkpoints\n",
      static_cast<long long>(restored->jobs), static_cast<long long>(restored->unfinished));
  if (!restored->moved_to.empty())
    std::printf("what was there is now %s\n", restored->moved_to.c_str());
  return 0;
}

const CLI::App* AddPlan(CLI::App& app, Options& options) {
  CLI::App* plan = app.add_subcommand("plan", "print the plan of a spec for this machine");
  AddSpec(*plan, options);
  plan->add_option("--profile", options.profile,
                   "of this machine, as `terrace profile` printed it");
  plan->add_option("--cluster", options.cluster,
                   "hardware that is not here: h100x8:128, or a cluster.yaml")
      ->excludes("--profile");
  plan->add_option("--html", options.files.html, "write a page about the plan");
  plan->add_option("--svg", options.files.svg, "write its picture alone");
  plan->add_option("--trace", options.files.trace, "write the simulated step for Perfetto");
  plan->add_option("--by", options.by, "layer: also the memory of each layer")
      ->check(CLI::IsMember({"layer"}));
  return plan;
}

const CLI::App* AddExplain(CLI::App& app, Options& options) {
  CLI::App* explain = app.add_subcommand("explain", "print the programs of a spec");
  AddSpec(*explain, options);
  explain->add_option("--sequence", options.sequence, "only this one: train, eval");
  explain->add_option("--stage", options.stage, "only this stage's program");
  explain->add_option("--cluster", options.cluster,
                      "hardware that is not here: h100x8:128, or a cluster.yaml");
  return explain;
}

absl::Status WriteEvalProgram(const Options& options) {
  return WriteEvalProgram(options.checkpoint, options.eval, options.program_file);
}

absl::Status WriteGenerateProgram(const Options& options) {
  return WriteGenerateProgram(options.checkpoint, options.generate, options.program_file);
}

int Main(int argc, char** argv) {
  Options options;
  if (const absl::Status legible = CheckCommandLine(argc, argv); !legible.ok()) {
    return Exit(options, legible);
  }
  options.serve.state_directory = DefaultStateDirectory();
  options.serve.version = TERRACE_VERSION;
  CLI::App app("Accepts jobs, compiles them and runs them on workers.", "terrace-coordinator");
  app.require_subcommand(1);
  app.add_option("--log-level", options.log_level, "debug, info, warn or error")
      ->capture_default_str();
  CLI::App* serve = app.add_subcommand("serve", "run the service until SIGTERM");
  AddServe(*serve, options.serve);
  CLI::App* restore = AddRestore(app, options);
  const CLI::App* plan = AddPlan(app, options);
  const CLI::App* explain = AddExplain(app, options);
  CLI::App* schema = app.add_subcommand("schema", "print the JSON schema of job specs");
  bool of_cluster = false;
  schema->add_flag("--cluster", of_cluster, "of cluster.yaml instead");
  CLI::App* metrics = app.add_subcommand("metrics", "print what the coordinator's /metrics has");
  AddOutput(*metrics, options);
  CLI::App* presets = app.add_subcommand("presets", "print the models that model.config may name");
  const CLI::App* import = AddImport(app, options);
  const CLI::App* estimate = AddEstimate(app, options);
  const CLI::App* evaluate = AddEvaluate(app, options);
  const CLI::App* generate = AddGenerateProgram(app, options);
  const CLI::App* eval = AddEvalProgram(app, options);
  CLI::App* data = app.add_subcommand("data-request", "check a spec for terrace data");
  AddSpec(*data, options);
  data->add_option("--request", options.program_file, "file to write")->required();
  CLI::App* planner =
      app.add_subcommand("planner", "plan for the coordinator that starts it")->group("");
  AddRoots(*planner, options.serve.roots);
  TakeWholeNumbersAsWritten(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : ToInt(ExitCode::kUsage);
  }
  log::Init("coordinator", log::ParseLevel(options.log_level));
  if (serve->parsed()) {
    absl::Status given = CheckRoots(options.serve.roots);
    given.Update(CheckHostPort("--listen", options.serve.listen));
    return Exit(options, given.ok() ? Serve(options.serve) : given);
  }
  if (restore->parsed()) return Restore(options);
  if (planner->parsed()) return Exit(options, AnswerRequests(options.serve.roots));
  if (plan->parsed()) return Plan(options);
  if (explain->parsed()) return Explain(options);
  if (schema->parsed()) {
    return std::fputs((of_cluster ? ClusterJsonSchema() : JobSpecJsonSchema()).c_str(), stdout) < 0;
  }
  if (metrics->parsed()) return PrintMetrics(options);
  if (presets->parsed()) return PrintPresets();
  options.import.json = options.estimate.json = options.output == "json";
  options.evaluate.json = options.estimate.json;
  if (import->parsed()) {
    const absl::StatusOr<bool> valid = ImportConfiguration(options.import);
    if (!valid.ok()) return Exit(options, valid.status());
    return *valid ? 0 : ToInt(ExitCode::kInvalidInput);
  }
  if (estimate->parsed()) return Exit(options, PrintEstimate(options.estimate));
  if (evaluate->parsed()) return Exit(options, PrintEvaluation(options.evaluate));
  if (data->parsed()) return Exit(options, WriteDataRequest(options.spec, options.program_file));
  if (eval->parsed()) return Exit(options, WriteEvalProgram(options));
  if (generate->parsed()) return Exit(options, WriteGenerateProgram(options));
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  return terrace::CloseOutput("terrace-coordinator", terrace::Main(argc, argv));
}
