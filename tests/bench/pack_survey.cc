// What packing leaves, and what the waits that earn reuse cost, over many training programs: a
// Llama of 16 layers, GPT-2 124M, Llama-3.1 8B and 70B, dp 8, pp 1 to 8, all schedules, ZeRO 0 to 3
// and policies of recompute. Every stage is compared with its own lower bound and with that of the
// program before waits were added; a layout with such waits is simulated with and without them.
//
// Prints a table of both gaps and the stages that are farthest off, or with --csv a line a stage:
// name, arena, own bound, bound before waits, seconds. A stride and a limit of seconds bound it;
// results/pack-*.md keeps what was measured.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/model/presets.h"
#include "coordinator/planner/catalogue.h"
#include "coordinator/planner/layout_rules.h"
#include "coordinator/planner/simulate.h"

namespace terrace {
namespace {

struct Options {
  size_t stride = 9;
  size_t offset = 0;
  double seconds = 600;  // no layout is begun after them
  size_t worst = 20;     // how many are named
  std::string only;      // layouts whose names contain it
  bool csv = false;
};

struct SurveyModel {
  std::string name;
  std::string config_json;
  int64_t sequence = 0;
  uint32_t tensor_parallel = 1;
};

constexpr char kLlama16[] =
    R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 2816,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": false})";

std::vector<SurveyModel> Models() {
  const auto preset = [](std::string_view name) {
    return std::string(FindPreset(name)->config_json);
  };
  return {{"llama16", kLlama16, 1024},
          {"gpt2", preset("gpt2"), 1024},
          {"llama-3.1-8b", preset("llama-3.1-8b"), 8192},
          {"llama-3.1-70b", preset("llama-3.1-70b"), 8192, 8}};
}

struct Batch {
  uint32_t micro_batch = 1, micro_batches = 8;
};

v1::Layout LayoutOf(const SurveyModel& model, uint32_t stages, const std::string& schedule,
                    uint32_t zero, const std::string& recompute, Batch batch) {
  v1::Layout layout;
  layout.set_data_parallel(8);
  layout.set_tensor_parallel(model.tensor_parallel);
  layout.set_sequence_parallel(model.tensor_parallel > 1);
  layout.set_pipeline_parallel(stages);
  layout.set_schedule(schedule);
  layout.set_zero_stage(zero);
  layout.set_recompute(recompute);
  layout.set_micro_batch(batch.micro_batch);
  layout.set_micro_batches(batch.micro_batches);
  layout.set_bucket_bytes(int64_t{25} << 20);
  layout.set_precision("bf16");
  layout.set_threads_per_rank(4);
  return layout;
}

struct Case {
  std::string name;
  size_t model = 0;
  v1::Layout layout;
};

v1::JobSpec SpecOf(const SurveyModel& model) {
  v1::JobSpec spec;
  spec.set_name(model.name);
  spec.mutable_data()->set_sequence_length(model.sequence);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(10);
  train->set_clip_grad_norm(1);
  train->mutable_optimizer()->set_lr(1e-4);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_schedule()->set_name("cosine");
  return spec;
}

Model ModelOf(const SurveyModel& model) {
  return BuildModel(*ParseModelConfig(model.config_json, model.sequence));
}

// All layouts of one model that its dimensions allow.
void AddCases(const SurveyModel& survey_model, size_t index, std::vector<Case>* cases) {
  const Model model = ModelOf(survey_model);
  const v1::JobSpec spec = SpecOf(survey_model);
  for (const uint32_t stages : {1, 2, 4, 8}) {
    for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb-h1", "zbv"}) {
      for (const uint32_t zero : {0, 1, 2, 3}) {
        for (const char* recompute : {"none", "selective", "block", "sqrt", "full"}) {
          for (const Batch batch : {Batch{1, 8}, Batch{2, 8}, Batch{1, 16}}) {
            const v1::Layout layout =
                LayoutOf(survey_model, stages, schedule, zero, recompute, batch);
            if (!CheckLayout(layout, model, spec).ok()) continue;
            cases->push_back(
                {absl::StrCat(survey_model.name, " pp ", stages, " ", schedule, " zero ", zero, " ",
                              recompute, " ", batch.micro_batch, "x", batch.micro_batches),
                 index, layout});
          }
        }
      }
    }
  }
}

struct Stage {
  std::string name;
  double over_unearned = 0;  // parts of the bound before waits
  double over_own = 0;
};
struct Earned {
  std::string name;
  double slower = 0;  // parts of the simulated step
};
struct Survey {
  std::vector<Stage> stages;
  std::vector<Earned> earned;  // layouts with waits that earn reuse
  size_t layouts = 0;
  double slowest_seconds = 0;  // to compile a layout, by stage
};

double Over(int64_t bytes, int64_t bound) {
  return static_cast<double>(bytes) / static_cast<double>(bound) - 1;
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// 0 and a message when something refuses it.
double StepSeconds(const std::vector<v1::Program>& programs) {
  const auto simulation = Simulate(programs, "train", ProfileOf(*FindDevice("H100-80GB")));
  if (simulation.ok()) return simulation->step_seconds;
  std::fprintf(stderr, "%s\n", std::string(simulation.status().message()).c_str());
  return 0;
}

bool Measure(const Case& c, const SurveyModel& survey_model, const Options& options,
             Survey* survey) {
  const Model model = ModelOf(survey_model);
  const v1::JobSpec spec = SpecOf(survey_model);
  const auto start = std::chrono::steady_clock::now();
  const auto programs = Compile({.spec = &spec, .model = &model, .layout = c.layout});
  const double seconds = Seconds(start);
  if (!programs.ok()) {
    std::fprintf(stderr, "%s: %s\n", c.name.c_str(),
                 std::string(programs.status().message()).c_str());
    return false;
  }
  bool earned = false;
  for (const v1::Program& program : *programs) {
    const v1::Arena& arena = program.arenas(0);
    const int64_t unearned = arena.unearned_bound_bytes();
    const int64_t bound = unearned > 0 ? unearned : arena.lower_bound_bytes();
    earned = earned || unearned > 0;
    survey->stages.push_back({absl::StrCat(c.name, " stage ", program.stage()),
                              Over(arena.bytes(), bound),
                              Over(arena.bytes(), arena.lower_bound_bytes())});
    if (options.csv) {
      std::printf("%s,%lld,%lld,%lld,%.3f\n", survey->stages.back().name.c_str(),
                  static_cast<long long>(arena.bytes()),
                  static_cast<long long>(arena.lower_bound_bytes()), static_cast<long long>(bound),
                  seconds / programs->size());
    }
  }
  ++survey->layouts;
  survey->slowest_seconds = std::max(survey->slowest_seconds, seconds / programs->size());
  if (!earned) return true;
  const auto bare =
      Compile({.spec = &spec, .model = &model, .layout = c.layout, .search_packings = false});
  if (!bare.ok()) return false;
  const double with = StepSeconds(*programs), without = StepSeconds(*bare);
  if (with == 0 || without == 0) return false;
  survey->earned.push_back({c.name, with / without - 1});
  return true;
}

// Of values that are sorted.
double Quantile(const std::vector<double>& values, double part) {
  return values.empty() ? 0 : values[static_cast<size_t>(part * (values.size() - 1))];
}

template <typename T>
void PrintRow(const char* what, const std::vector<T>& entries, double T::*value) {
  std::vector<double> values;
  for (const T& entry : entries) values.push_back(entry.*value);
  std::sort(values.begin(), values.end());
  const auto over = [&](double limit) {
    return values.end() - std::upper_bound(values.begin(), values.end(), limit);
  };
  std::printf("| %s | %zu | %.2f %% | %.2f %% | %.2f %% | %td | %td |\n", what, values.size(),
              100 * Quantile(values, 0.5), 100 * Quantile(values, 0.9), 100 * Quantile(values, 1),
              over(0.005), over(0.01));
}

template <typename T>
void PrintWorst(const char* title, std::vector<T> entries, double T::*value, double least,
                size_t count) {
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const T& a, const T& b) { return a.*value > b.*value; });
  std::printf("\n%s\n\n", title);
  for (size_t i = 0; i < std::min(count, entries.size()) && entries[i].*value > least; ++i) {
    std::printf("- %s: %.2f %%\n", entries[i].name.c_str(), 100 * (entries[i].*value));
  }
}

void Print(const Survey& survey, size_t worst) {
  std::printf("%zu layouts, %zu stages, at most %.2f s a stage of one layout\n\n", survey.layouts,
              survey.stages.size(), survey.slowest_seconds);
  std::printf(
      "| | of | median | 90 %% | largest | over 0.5 %% | over 1 %% |\n"
      "|---|---|---|---|---|---|---|\n");
  PrintRow("over the bound before waits", survey.stages, &Stage::over_unearned);
  PrintRow("over the program's own bound", survey.stages, &Stage::over_own);
  PrintRow("step time that waits cost", survey.earned, &Earned::slower);
  PrintWorst("Over the bound before waits:", survey.stages, &Stage::over_unearned, 0.005, worst);
  PrintWorst("Over their own bound:", survey.stages, &Stage::over_own, 0.005, worst);
  PrintWorst("Slower by waits:", survey.earned, &Earned::slower, 0, worst);
}

// False for what is no option of this program.
bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--csv") {
      options->csv = true;
      continue;
    }
    if (++i == argc) return false;
    const std::string value = argv[i];
    int64_t number = 0;
    if (name == "--only") {
      options->only = value;
      continue;
    }
    if (!absl::SimpleAtoi(value, &number) || number < 0) return false;
    if (name == "--stride" && number > 0) {
      options->stride = static_cast<size_t>(number);
    } else if (name == "--offset") {
      options->offset = static_cast<size_t>(number);
    } else if (name == "--seconds") {
      options->seconds = static_cast<double>(number);
    } else if (name == "--worst") {
      options->worst = static_cast<size_t>(number);
    } else {
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: pack_survey [--stride LAYOUTS] [--offset LAYOUT] [--seconds LIMIT] "
                 "[--worst NAMES] [--only PART_OF_NAME] [--csv]\n");
    return 2;
  }

  const std::vector<SurveyModel> models = Models();
  std::vector<Case> cases;
  for (size_t i = 0; i < models.size(); ++i) AddCases(models[i], i, &cases);
  std::erase_if(cases,
                [&](const Case& c) { return c.name.find(options.only) == std::string::npos; });
  const auto start = std::chrono::steady_clock::now();
  Survey survey;
  bool all = true;
  for (size_t i = options.offset; i < cases.size(); i += options.stride) {
    if (Seconds(start) > options.seconds) {
      std::fprintf(stderr, "stopped at layout %zu of %zu\n", i, cases.size());
      all = false;
      break;
    }
    all = Measure(cases[i], models[cases[i].model], options, &survey) && all;
  }
  if (!options.csv) Print(survey, options.worst);
  return all ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
