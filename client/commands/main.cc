// `terrace`, the command line: declares the commands and hands over to client/commands.
//
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/command_line.h"
#include "base/exit_code.h"
#include "client/commands/checkpoint_options.h"
#include "client/commands/commands.h"
#include "client/completion.h"
#include "client/options.h"
#include "client/print.h"

namespace terrace {
namespace {

constexpr char kVersion[] = "terrace " TERRACE_VERSION;
constexpr int64_t kAuthorityDays = 3650;
constexpr int64_t kCertificateDays = 365;
constexpr int64_t kListLimitMax = 1'000'000;
constexpr char kFooter[] =
    "Exit codes: 0 done, 1 failed, 2 wrong command line, 3 not found, 4 invalid input, 5 too "
    "little memory, disk or "
    "devices,\n6 coordinator unreachable, 7 cancelled, 130 interrupted (docs/exit_codes.md).";

std::vector<CommandWords> CommandTree(const CLI::App& app) {
  std::vector<CommandWords> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    CommandWords words{command->get_name(), command->get_description(), {}, {}};
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) words.options.push_back("--" + name);
      for (const std::string& name : option->get_snames()) words.options.push_back("-" + name);
    }
    for (const CLI::App* sub : command->get_subcommands([](const CLI::App*) { return true; })) {
      words.subcommands.push_back(sub->get_name());
    }
    commands.push_back(std::move(words));
  }
  return commands;
}

// Owns the option values while CLI11 fills them, and the exit code of the command that ran.
class CommandLine {
 public:
  CommandLine() {
    app_.set_version_flag("--version", kVersion);
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.footer(kFooter);
    AddGlobalOptions();
    AddLocalCommands();
    AddPaperCommands();
    AddServiceCommands();
    AddToolCommands();
    AddCerts();
    TakeWholeNumbersAsWritten(app_);
  }

  int Run(int argc, char** argv) {
    const absl::Status legible = CheckCommandLine(argc, argv);
    if (!legible.ok()) return Fail(global_, legible);
    std::vector<std::string> arguments(argv + 1, argv + argc);
    // Quoted flags are a value, not an option of ours.
    for (std::string& argument : arguments) {
      if (argument.starts_with("--") && argument.find_first_of(" =") < argument.find('=')) {
        argument.insert(0, 1, ' ');
      }
    }
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    try {
      app_.parse(std::move(arguments));
    } catch (const CLI::ParseError& error) {
      return app_.exit(error) == 0 ? 0 : ToInt(ExitCode::kUsage);
    }
    return code_;
  }

 private:
  template <typename Command>
  void On(CLI::App* app, Command command) {
    app->callback([this, command] {
      global_.coordinator_given = coordinator_->count() > 0;
      code_ = command();
    });
  }

  void AddGlobalOptions() {
    coordinator_ = app_.add_option("--coordinator", global_.coordinator,
                                   "Address of the coordinator, HOST:PORT")
                       ->envname("TERRACE_COORDINATOR")
                       ->capture_default_str();
    app_.add_option("-o,--output", global_.output, "Output: table or json")
        ->transform(CLI::CheckedTransformer(
            std::map<std::string, Output>{{"table", Output::kTable}, {"json", Output::kJson}}))
        ->option_text("table|json");
    app_.add_option("--tls-ca", global_.tls_ca, "Certificate authority of the coordinator (PEM)");
    app_.add_option("--tls-cert", global_.tls_cert, "Own certificate (PEM)");
    app_.add_option("--tls-key", global_.tls_key, "Own private key (PEM)");
    app_.add_option("--token-file", global_.token_file, "File with own token, instead of those two")
        ->envname("TERRACE_TOKEN_FILE");
  }

  static void AddBy(CLI::App* command, std::string& by) {
    command->add_option("--by", by, "layer: memory of each layer, and what would lower it")
        ->check(CLI::IsMember({"layer"}));
  }

  static void AddRunLogs(CLI::App* command, RunLogOptions& logs) {
    command->add_option("--csv", logs.csv, "Log steps as a table into this file");
    command->add_option("--tensorboard", logs.tensorboard,
                        "Log steps into this folder for `tensorboard --logdir`");
    command->add_option("--wandb", logs.wandb,
                        "Log an offline run of Weights & Biases into this folder");
  }

  void AddLocalCommands() {
    CLI::App* run = app_.add_subcommand("run", "Train a job on this machine and watch it");
    run->add_option("spec", run_.spec_path, "Job spec (YAML)")->required();
    run->add_option("--state-dir", run_.state_directory, "Folder for state and logs of this run");
    AddRunLogs(run, run_.logs);
    On(run, [this] { return RunCommand(global_, run_); });

    CLI::App* plan =
        app_.add_subcommand("plan", "Show layout, memory and expected time, without running");
    plan->add_option("spec", plan_.spec_path, "Job spec (YAML)")->required();
    plan->add_option("--profile", plan_.profile,
                     "File with this machine's profile, as `terrace profile -o json` prints it");
    plan->add_option("--cluster", plan_.cluster,
                     "Plan for hardware that is not here: DEVICExN:NODES, such as h100x8:128, or a "
                     "cluster.yaml")
        ->excludes("--profile");
    AddBy(plan, plan_.by);
    plan->add_option("--html", plan_.html, "Write a page about the plan");
    plan->add_option("--svg", plan_.svg, "Write the pictures of that page alone");
    plan->add_option("--trace", plan_.trace, "Write the simulated step for ui.perfetto.dev (JSON)");
    On(plan, [this] { return PlanCommand(global_, plan_); });

    CLI::App* evaluate = app_.add_subcommand(
        "evaluate", "Find the largest sizes that fit, and what each memory technique costs");
    evaluate->add_option("spec", evaluate_.spec_path, "Job spec (YAML)")->required();
    evaluate->add_option("--profile", evaluate_.profile, "As of plan");
    evaluate->add_option("--cluster", evaluate_.cluster, "On paper, as of plan")
        ->excludes("--profile");
    evaluate->add_option("--html", evaluate_.html, "Write a page about it");
    evaluate->add_option("--seconds", evaluate_.seconds, "After which it ends with what it found")
        ->check(CLI::Range(1.0, 86'400.0))
        ->capture_default_str();
    evaluate->add_flag("--brief", evaluate_.brief, "Without the largest sizes of each technique");
    On(evaluate, [this] { return EvaluateCommand(global_, evaluate_); });

    CLI::App* profile =
        app_.add_subcommand("profile", "Measure this machine, so that plans tell the time right");
    profile
        ->add_option("--threads", profile_.threads,
                     "Threads of a rank; 0: all cores, half of them and so on")
        ->check(CLI::Range(0, 4096))
        ->capture_default_str();
    profile->add_option("--device", profile_.device, "auto, cpu or cuda")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
    profile->add_option("--nvme", profile_.nvme, "Folder whose drive is measured as well");
    profile->add_flag("--refresh", profile_.refresh, "Measure although a profile is kept");
    On(profile, [this] { return ProfileCommand(global_, profile_); });

    CLI::App* explain = app_.add_subcommand("explain", "Show the compiled program");
    explain->add_option("spec", explain_.spec_or_job, "Job spec (YAML) or job id")->required();
    explain->add_option("--sequence", explain_.sequence, "Only this sequence: train or eval");
    explain->add_option("--stage", explain_.stage, "Only the program of this pipeline stage");
    explain->add_option("--cluster", explain_.cluster, "On paper, as of plan");
    On(explain, [this] { return ExplainCommand(global_, explain_); });

    CLI::App* completion = app_.add_subcommand("completion", "Print a shell completion script");
    completion->add_option("shell", shell_, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    On(completion, [this] {
      return std::fputs(CompletionScript(shell_, CommandTree(app_)).c_str(), stdout) < 0 ? 1 : 0;
    });
  }

  // What needs neither a cluster nor a job.
  void AddPaperCommands() {
    CLI::App* estimate = app_.add_subcommand(
        "estimate", "Memory of training, adapters and inference by the formulas");
    estimate->add_option("model", words_, "Preset, config.json or its folder")
        ->required()
        ->expected(1);
    Forward(estimate, "--sequence-length",
            "Tokens of a sequence; without it 2048, or what the model has");
    Forward(estimate, "--batch", "Sequences on a device at a time");
    Forward(estimate, "--devices", "Devices that share the states");
    Forward(estimate, "--precision", "bf16 or fp32");
    Forward(estimate, "--optimizer",
            "adamw, adam, sgd, momentum or nesterov (of sgd), lion, muon, adafactor or came");
    Forward(estimate, "--moments", "How its moments rest: f32, bf16 or int8");
    Forward(estimate, "--gradient", "How gradients are stored in training: f32 or bf16");
    Forward(estimate, "--lora-rank", "Rank of the adapters; without it 16");
    Forward(estimate, "--only", "training, optimizers, activations, lora, qlora or inference");
    On(estimate, [this] { return Compile({"estimate", words_.at(0)}); });

    CLI::App* import =
        app_.add_subcommand("import", "Make a job spec of a DeepSpeed or Megatron configuration");
    import->add_option(
        "configuration", words_,
        "deepspeed ds_config.json, or megatron and its flags in quotes or a file of them");
    import->add_option("--from", from_, "deepspeed or megatron, instead of the first word");
    for (const char* option : {"--name", "--model", "--train", "--sequence-length", "--steps",
                               "--nodes", "--devices-per-node"}) {
      Forward(import, option, "What the configuration does not say");
    }
    On(import, [this] {
      std::vector<std::string> words = words_;
      if (!from_.empty()) words.insert(words.begin(), from_);
      if (words.size() != 2) {
        std::fprintf(stderr,
                     "terrace import: give deepspeed ds_config.json or megatron \"<flags>\"\n");
        return ToInt(ExitCode::kUsage);
      }
      return Compile({"import", "--from", words[0], "--input=" + words[1]});
    });
  }

  // Handed on as it is; whoever does the work checks it.
  void Forward(CLI::App* command, const std::string& option, const char* meaning) {
    command->add_option(option, forwarded_[command->get_name()][option], meaning);
  }

  int Compile(std::vector<std::string> arguments) {
    for (const auto& [option, value] : forwarded_[arguments[0]]) {
      if (!value.empty()) arguments.push_back(option + "=" + value);
    }
    return CompilerToolCommand(global_, {arguments});
  }

  void AddSubmit() {
    CLI::App* submit = app_.add_subcommand("submit", "Hand a job to the coordinator");
    submit->add_option("spec", submit_.spec_path, "Job spec (YAML)")->required();
    submit->add_flag("--watch", submit_.watch, "Then watch it");
    submit->add_flag("--hold", submit_.hold,
                     "Paused from the beginning: it runs once it is resumed");
    const auto after = [submit](const char* flag, std::vector<std::string>& jobs,
                                const char* meaning) {
      submit->add_option(flag, jobs, meaning)->delimiter(',')->type_name("JOB,...");
    };
    after("--after", submit_.after, "It starts after these jobs have succeeded");
    after("--after-any", submit_.after_any, "It starts after these jobs have ended in any way");
    after("--after-failed", submit_.after_failed,
          "It starts after these jobs have failed or were cancelled");
    CLI::Option* sweep =
        submit
            ->add_option("--sweep", submit_.sweeps,
                         "A job for each of these values of a key; may be given again, for all "
                         "combinations")
            ->type_name("KEY=VALUE,...")
            ->allow_extra_args(false)
            ->excludes("--watch");
    submit
        ->add_option("--max-running", submit_.running_max,
                     "Of a sweep: jobs that hold devices at a time")
        ->check(CLI::Range(1, 1000))
        ->needs(sweep);
    On(submit, [this] { return SubmitCommand(global_, submit_); });
  }

  void AddList() {
    CLI::App* list = app_.add_subcommand("ls", "List jobs, the newest first");
    list->add_flag("-a,--all", list_.all, "Also those that have ended");
    std::vector<std::string> states;
    for (int state = v1::JobState_MIN + 1; state <= v1::JobState_MAX; ++state)
      states.push_back(v1::JobState_Name(static_cast<v1::JobState>(state)));
    list->add_option("-s,--state", list_.states, "Only those in these states, ended ones too")
        ->delimiter(',')
        ->transform(CLI::IsMember(states, CLI::ignore_case));
    list->add_option("--owner", list_.owner, "Only those that this user submitted");
    list->add_option("--limit", list_.limit,
                     "At most so many (default 100, with -o json all; 0: all)")
        ->check(CLI::Range(int64_t{0}, kListLimitMax));
    list->add_option("--before", list_.before, "Go on behind a list that was not complete")
        ->check(CLI::Range(int64_t{1}, INT64_MAX));
    On(list, [this] { return ListCommand(global_, list_); });
  }

  void AddServiceCommands() {
    AddSubmit();
    AddList();

    CLI::App* status = app_.add_subcommand("status", "Show one job");
    status->add_option("job", job_.job, "Job id")->required();
    On(status, [this] { return StatusCommand(global_, job_); });

    CLI::App* sweep_table =
        app_.add_subcommand("sweep", "Compare the jobs of a sweep in one table");
    sweep_table->add_option("job", job_.job, "Any of its jobs")->required();
    On(sweep_table, [this] { return SweepCommand(global_, job_); });

    CLI::App* watch = app_.add_subcommand("watch", "Follow a job until it ends");
    watch->add_option("job", watch_.job, "Job id")->required();
    AddRunLogs(watch, watch_.logs);
    On(watch, [this] { return WatchCommand(global_, watch_); });

    CLI::App* memory = app_.add_subcommand("memory", "Show what the ranks of a job hold");
    memory->add_option("job", memory_.job, "Job id")->required();
    memory->add_flag("-w,--watch", memory_.watch, "Again each second until the job ends");
    AddBy(memory, memory_.by);
    memory->add_option("--html", memory_.html, "Write a page about the memory over one step");
    memory->add_option("--snapshot", memory_.snapshot,
                       "Write a snapshot for PyTorch's memory viewer (pickle)");
    On(memory, [this] { return MemoryCommand(global_, memory_); });

    CLI::App* logs = app_.add_subcommand("logs", "Show the log of one rank");
    logs->add_option("job", logs_.job, "Job id")->required();
    logs->add_option("--rank", logs_.rank, "Rank")->capture_default_str();
    logs->add_flag("-f,--follow", logs_.follow, "Wait for more until the job ends");
    logs->add_option("-n,--tail", logs_.tail_lines, "Only the last lines; 0: all")
        ->capture_default_str();
    On(logs, [this] { return LogsCommand(global_, logs_); });

    CLI::App* trace =
        app_.add_subcommand("trace", "Fetch the measured timeline of one rank's first steps");
    trace->add_option("job", trace_.job, "Job id, of a job with train.trace_steps")->required();
    trace->add_option("--rank", trace_.rank, "Rank")->capture_default_str();
    trace->add_option("--output", trace_.output_path,
                      "File to write, for ui.perfetto.dev; default: standard output");
    On(trace, [this] { return TraceCommand(global_, trace_); });

    AddChanges();
    On(app_.add_subcommand("shares",
                           "Show what each user's jobs have had of the devices, and hold"),
       [this] { return SharesCommand(global_); });
    On(app_.add_subcommand("nodes", "List workers"), [this] { return NodesCommand(global_); });
    AddDrain();

    CLI::App* backup = app_.add_subcommand("backup", "Copy the coordinator's state into a file");
    backup->add_option("file", backup_.path, "File to write")->required();
    backup->add_flag("--replace", backup_.replace, "Although there is such a file");
    On(backup, [this] { return BackupCommand(global_, backup_); });
  }

  static CLI::App* AddJobs(CLI::App* command, std::vector<std::string>& jobs) {
    command->add_option("jobs", jobs, "Job ids")->required();
    return command;
  }

  static void AddArray(CLI::App* command, bool& arrays) {
    command->add_flag("--array", arrays, "Also all others of the sweep that a job is of");
  }

  void AddChanges() {
    CLI::App* cancel =
        AddJobs(app_.add_subcommand("cancel", "Stop jobs after a checkpoint"), cancel_.jobs);
    cancel->add_flag("--force", cancel_.force, "At once, without a checkpoint");
    AddArray(cancel, cancel_.arrays);
    On(cancel, [this] { return CancelCommand(global_, cancel_); });

    CLI::App* pause =
        AddJobs(app_.add_subcommand("pause",
                                    "Stop jobs after a checkpoint and free their devices, or hold "
                                    "them in the queue"),
                pause_.jobs);
    pause->add_flag("--force", pause_.force, "At once: they go on from their last checkpoint");
    pause->add_flag("--wait", pause_.wait, "Until they are paused");
    AddArray(pause, pause_.arrays);
    On(pause, [this] { return PauseCommand(global_, pause_); });

    CLI::App* resume = AddJobs(
        app_.add_subcommand("resume", "Let paused jobs go on where they were"), resume_.jobs);
    AddArray(resume, resume_.arrays);
    On(resume, [this] { return ResumeCommand(global_, resume_); });

    CLI::App* requeue =
        AddJobs(app_.add_subcommand(
                    "requeue", "Let jobs free their devices after a checkpoint and wait again"),
                requeue_.jobs);
    requeue->add_flag("--force", requeue_.force, "At once: they go on from their last checkpoint");
    AddArray(requeue, requeue_.arrays);
    On(requeue, [this] { return RequeueCommand(global_, requeue_); });
  }

  void AddDrain() {
    CLI::App* drain = app_.add_subcommand(
        "drain",
        "Take a worker out of use: its jobs move after a checkpoint, and none is placed there");
    drain->add_option("node", drain_.node,
                      "Worker, as `terrace nodes` names it; without it those "
                      "that are drained are listed");
    CLI::Option* disable = drain->add_flag("--disable", drain_.disable, "Take it back into use");
    drain->add_flag("--enable", enable_, "Drain it, as without a flag")->excludes(disable);
    drain
        ->add_option("--deadline", drain_.deadline,
                     "After that (90s, 10m, 1h30m) jobs that are left move without a checkpoint")
        ->capture_default_str()
        ->excludes(disable);
    CLI::Option* none = drain->add_flag("--no-deadline", drain_.no_deadline,
                                        "Jobs that are left are never moved without a checkpoint");
    none->excludes(disable)->excludes("--deadline");
    drain->add_flag("--force", drain_.force, "Jobs move at once, from their last checkpoint")
        ->excludes(disable)
        ->excludes(none)
        ->excludes("--deadline");
    drain
        ->add_flag("--keep-jobs", drain_.keep_jobs,
                   "Jobs there run on until they end or the deadline comes")
        ->excludes(disable)
        ->excludes("--force");
    drain
        ->add_flag("--until-restart", drain_.until_restart,
                   "It is back in use when its terrace-worker is started again")
        ->excludes(disable);
    drain->add_option("--reason", drain_.reason, "Why, for those who read `terrace nodes`")
        ->excludes(disable);
    drain->add_flag("--detach", drain_.detach, "Do not wait until no job is left there")
        ->excludes(disable);
    On(drain, [this] { return DrainCommand(global_, drain_); });
  }

  void AddToolCommands() {
    CLI::App* generate =
        app_.add_subcommand("generate", "Continue texts with a trained checkpoint");
    AddGenerateOptions(generate, &generate_);
    On(generate, [this] { return GenerateCommand(global_, generate_); });

    CLI::App* serve =
        app_.add_subcommand("serve", "Answer completions from a trained checkpoint over HTTP");
    AddServeOptions(serve, &serve_);
    On(serve, [this] { return ServeCommand(global_, serve_); });

    CLI::App* eval = app_.add_subcommand("eval", "The loss of a trained checkpoint on texts");
    AddEvalOptions(eval, &eval_);
    On(eval, [this] { return EvalCommand(global_, eval_); });

    CLI::App* data = app_.add_subcommand("data", "Show what a job is trained on, row by row");
    data->add_option("spec", data_.spec, "Job spec")->required();
    data->add_option("--rows", data_.rows, "Rows to show")->capture_default_str();
    data->add_option("--steps", data_.steps, "Steps to look at")->capture_default_str();
    On(data, [this] { return DataCommand(global_, data_); });

    CLI::App* tokenize = app_.add_subcommand("tokenize", "Turn text files into a token file");
    tokenize->add_option("--tokenizer", tokenizer_, "bytes, tokenizer.json or *.model")->required();
    tokenize->add_option("--output", output_path_, "Token file to write")->required();
    tokenize->add_option("files", files_, ".txt or .jsonl files, also .gz and .zst")->required();
    On(tokenize, [this] {
      std::vector<std::string> arguments = {"tokenize", "--tokenizer", tokenizer_, "--output",
                                            output_path_};
      arguments.insert(arguments.end(), files_.begin(), files_.end());
      return ToolCommand(global_, {arguments});
    });

    CLI::App* ckpt = app_.add_subcommand("ckpt", "List, verify, export and merge checkpoints");
    ckpt->require_subcommand(1);
    CLI::App* ls = ckpt->add_subcommand("ls", "List the checkpoints of a directory");
    ls->add_option("directory", path_, "Checkpoint directory")->required();
    On(ls, [this] { return ToolCommand(global_, {{"ckpt", "ls", path_}}); });
    CLI::App* verify = ckpt->add_subcommand("verify", "Read every byte and compare checksums");
    verify->add_option("checkpoint", path_, "Checkpoint folder")->required();
    On(verify, [this] { return ToolCommand(global_, {{"ckpt", "verify", path_}}); });
    CLI::App* exported = ckpt->add_subcommand("export", "Write a folder that transformers loads");
    exported->add_flag("--adapter", adapter_,
                       "Of a job with model.lora: the adapter alone, for PEFT");
    CLI::App* merge = ckpt->add_subcommand(
        "merge", "Merge an adapter into its model and write a folder that transformers loads");
    for (CLI::App* command : {exported, merge}) AddExportOptions(command);
  }

  void AddExportOptions(CLI::App* command) {
    command->add_option("checkpoint", path_, "Checkpoint folder")->required();
    command->add_option("--output", output_path_, "Folder to write")->required();
    command->add_option("--dtype", dtype_, "f32, bf16 or f16")->capture_default_str();
    command->add_flag("--best", best_, "Of a directory the one of the best evaluation");
    On(command, [this, command] {
      std::vector<std::string> arguments = {"ckpt",       command->get_name(), path_, "--output",
                                            output_path_, "--dtype",           dtype_};
      if (best_) arguments.emplace_back("--best");
      if (adapter_) arguments.emplace_back("--adapter");
      return ToolCommand(global_, {arguments});
    });
  }

  // The days have another default for each of them, and are filled in before it is parsed.
  CLI::App* AddCertsAction(CLI::App* certs, const std::string& name, const std::string& meaning,
                           CertsOptions::Action action) {
    CLI::App* command = certs->add_subcommand(name, meaning);
    command->add_option("--dir", certs_.directory, "Folder with the authority and its certificates")
        ->capture_default_str();
    On(command, [this, action] {
      certs_.action = action;
      if (action == CertsOptions::kInit && certs_.name.empty()) certs_.name = "Terrace authority";
      const bool is_authority = action == CertsOptions::kInit || certs_.authority;
      const bool as_before = action == CertsOptions::kRotate && !is_authority;
      if (certs_.days == 0 && !as_before)
        certs_.days = is_authority ? kAuthorityDays : kCertificateDays;
      return CertsCommand(global_, certs_);
    });
    return command;
  }

  void AddDays(CLI::App* command, const std::string& otherwise) {
    command->add_option("--days", certs_.days, "How long it is valid; without it " + otherwise)
        ->check(CLI::Range(int64_t{1}, int64_t{36'500}));
  }

  void AddCerts() {
    CLI::App* certs = app_.add_subcommand(
        "certs", "Make a certificate authority, and certificates that say who is who");
    certs->require_subcommand(1);
    CLI::App* init = AddCertsAction(certs, "init", "Make an authority", CertsOptions::kInit);
    init->add_option("--name", certs_.name, "Its name; without it \"Terrace authority\"");
    AddDays(init, std::to_string(kAuthorityDays));

    CLI::App* issue =
        AddCertsAction(certs, "issue", "Make a certificate and its key", CertsOptions::kIssue);
    issue->add_option("role", certs_.role, "coordinator, worker, submitter, operator or viewer")
        ->required()
        ->check(CLI::IsMember({"coordinator", "worker", "submitter", "operator", "viewer"}));
    CLI::Option* name = issue->add_option("name", certs_.name, "Of the worker or person");
    issue->add_option("--host", certs_.hosts,
                      "Name or address at which it is reached: of a coordinator by all, of a "
                      "worker by Prometheus; may be given again");
    issue->add_flag("--any-name", certs_.any_name, "Of workers: one that several share")
        ->excludes(name);
    AddDays(issue, std::to_string(kCertificateDays));

    CLI::App* rotate = AddCertsAction(certs, "rotate", "Make certificates anew, with new keys",
                                      CertsOptions::kRotate);
    rotate->add_option("files", certs_.files, "Certificates, as `terrace certs ls` names them");
    CLI::Option* all = rotate->add_flag("--all", certs_.all, "All of the folder");
    rotate
        ->add_option("--within", certs_.within_days,
                     "With --all: only those that run out within so many days")
        ->check(CLI::Range(int64_t{1}, int64_t{36'500}))
        ->needs(all);
    CLI::Option* authority = rotate->add_flag("--authority", certs_.authority,
                                              "The authority; those before it stay trusted");
    CLI::Option* forget = rotate->add_flag("--forget-old", certs_.forget_old,
                                           "Trust only the authority that signs now");
    authority->excludes(all)->excludes(forget);
    forget->excludes(all);
    AddDays(rotate, "as long as the one before, an authority " + std::to_string(kAuthorityDays));

    CLI::App* token = certs->add_subcommand(
        "token", "Make a token of a person, who shows it instead of a certificate");
    token->add_option("role", certs_.role, "submitter, operator or viewer")
        ->required()
        ->check(CLI::IsMember({"submitter", "operator", "viewer"}));
    token->add_option("name", certs_.name, "Of the person")->required();
    token
        ->add_option("--tokens", certs_.tokens,
                     "File of the coordinator's --tokens, to which its hash is added")
        ->required();
    token->add_option("--days", certs_.days, "How long it is valid; without it until it is removed")
        ->check(CLI::Range(int64_t{1}, int64_t{36'500}));
    On(token, [this] {
      certs_.action = CertsOptions::kToken;
      return CertsCommand(global_, certs_);
    });

    AddCertsAction(certs, "ls", "List the certificates of a folder", CertsOptions::kList);
  }

  CLI::App app_{"Terrace trains large language models: plan, prove, run."};
  CLI::Option* coordinator_ = nullptr;
  int code_ = 0;
  GlobalOptions global_;
  RunOptions run_;
  PlanOptions plan_;
  EvaluateOptions evaluate_;
  ProfileOptions profile_;
  ExplainOptions explain_;
  SubmitOptions submit_;
  ListOptions list_;
  JobOptions job_;
  WatchOptions watch_;
  MemoryOptions memory_;
  LogsOptions logs_;
  TraceOptions trace_;
  CancelOptions cancel_;
  PauseOptions pause_;
  ResumeOptions resume_;
  RequeueOptions requeue_;
  DrainOptions drain_;
  bool enable_ = false;  // what drain does anyway
  GenerateOptions generate_;
  ServeOptions serve_;
  EvalOptions eval_;
  DataOptions data_;
  CertsOptions certs_;
  BackupOptions backup_;
  std::string shell_, tokenizer_, output_path_, path_, dtype_ = "f32";
  bool best_ = false;
  bool adapter_ = false;
  std::vector<std::string> files_, words_;
  std::string from_;
  std::map<std::string, std::map<std::string, std::string>> forwarded_;  // command, option, value
};

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // what it would print is in the error
  const int code = terrace::CommandLine().Run(argc, argv);
  return terrace::CloseOutput("terrace", code);
}
