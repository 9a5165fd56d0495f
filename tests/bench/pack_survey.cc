// What packing leaves, and what the waits that earn reuse cost, over the training programs of
// pack_cases.h. Every stage is compared with its own lower bound and with that of the program
// before waits were added; a layout with such waits is simulated with and without them. --bare
// packs the programs as they are without such waits instead, equal problems once; --screen packs
// with orders only, and in full where those leave more than 1 %, so that thousands of layouts are
// done. --dump keeps the problems of which (the orders) leave more than 1 %, to be studied.
//
// Prints a table of both gaps and the stages that are farthest off, or with --csv a line a stage:
// name, arena, own bound, bound before waits, seconds (with --bare: name, buffers, arena, bound,
// seconds). A stride and a limit of seconds bound it; results/pack-*.md keeps what was measured.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/compiler/pack.h"
#include "coordinator/compiler/pack_problem.h"
#include "coordinator/planner/catalogue.h"
#include "coordinator/planner/simulate.h"
#include "tests/bench/pack_cases.h"

namespace terrace {
namespace {

struct Options {
  size_t stride = 9;
  size_t offset = 0;
  double seconds = 600;  // no layout is begun after them
  size_t worst = 20;     // how many are named
  std::string only;      // layouts whose names contain it
  std::string dump;      // a folder for the problems of which more than 1 % is left
  bool csv = false;
  bool bare = false;
  bool screen = false;
};

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
  std::vector<Earned> earned;         // layouts with waits that earn reuse
  std::map<uint64_t, double> packed;  // over the bound, by problem
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

// With what lies there all the time as a buffer of its own: the problem of the whole arena.
std::vector<PackBuffer> WholeArena(DeviceLives lives) {
  if (lives.persistent_bytes == 0 || lives.buffers.empty()) return lives.buffers;
  PackBuffer whole = {.name = "persistent", .bytes = lives.persistent_bytes};
  whole.begin = lives.buffers.front().begin;
  for (const PackBuffer& buffer : lives.buffers) {
    whole.begin = std::min(whole.begin, buffer.begin);
    whole.end = std::max(whole.end, buffer.end);
  }
  lives.buffers.push_back(whole);
  return lives.buffers;
}

void Dump(const std::string& path, const std::vector<PackBuffer>& buffers) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return std::perror(path.c_str());
  std::fprintf(file, "id,lower,upper,size\n");
  for (const PackBuffer& buffer : buffers) {
    std::fprintf(file, "%s,%lld,%lld,%lld\n", buffer.name.c_str(),
                 static_cast<long long>(buffer.begin), static_cast<long long>(buffer.end),
                 static_cast<long long>(buffer.bytes));
  }
  std::fclose(file);
}

uint64_t Fingerprint(const std::vector<PackBuffer>& buffers) {
  uint64_t hash = buffers.size();
  const auto mix = [&](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  };
  for (const PackItem& item : MakePackProblem(buffers).items) {
    mix(item.bytes);
    mix(item.begin);
    mix(item.end);
  }
  return hash;
}

// More than 1 % of the whole arena is left.
bool IsFar(const Packing& packing, int64_t base) {
  return Over(base + packing.arena_bytes, base + packing.lower_bound_bytes) > 0.01;
}

// The programs as they are without waits that earn reuse; equal problems are packed once.
bool MeasureBare(const Case& c, const SurveyModel& survey_model, const Options& options,
                 Survey* survey) {
  const Model model = ModelOf(survey_model);
  const v1::JobSpec spec = SpecOf(survey_model);
  const auto programs =
      Compile({.spec = &spec, .model = &model, .layout = c.layout, .search_packings = false});
  if (!programs.ok()) {
    std::fprintf(stderr, "%s: %s\n", c.name.c_str(),
                 std::string(programs.status().message()).c_str());
    return false;
  }
  ++survey->layouts;
  for (const v1::Program& program : *programs) {
    DeviceLives lives = DeviceLivesOf(program);
    const int64_t base = lives.persistent_bytes;
    const std::string name = absl::StrCat(c.name, " stage ", program.stage());
    const std::vector<PackBuffer> whole = WholeArena(lives);
    const auto [known, is_new] = survey->packed.try_emplace(Fingerprint(whole));
    if (is_new) {
      const auto start = std::chrono::steady_clock::now();
      auto packing =
          Pack(lives.buffers, options.screen ? PackEffort::kOrders : PackEffort::kFull, base);
      const bool far = packing.ok() && IsFar(*packing, base);
      if (options.screen && far) packing = Pack(lives.buffers, PackEffort::kFull, base);
      if (!packing.ok()) return false;
      const double seconds = Seconds(start);
      survey->slowest_seconds = std::max(survey->slowest_seconds, seconds);
      known->second = Over(base + packing->arena_bytes, base + packing->lower_bound_bytes);
      if (options.csv) {
        std::printf("%s,%zu,%lld,%lld,%.3f\n", name.c_str(), whole.size(),
                    static_cast<long long>(base + packing->arena_bytes),
                    static_cast<long long>(base + packing->lower_bound_bytes), seconds);
        std::fflush(stdout);
      }
      if (!options.dump.empty() && far) {
        std::string file = name;
        std::replace(file.begin(), file.end(), ' ', '_');
        Dump(absl::StrCat(options.dump, "/", file, ".csv"), whole);
      }
    }
    survey->stages.push_back({name, known->second, known->second});
  }
  return true;
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
    if (name == "--csv") options->csv = true;
    if (name == "--bare" || name == "--screen") options->bare = true;
    if (name == "--screen") options->screen = true;
    if (name == "--csv" || name == "--bare" || name == "--screen") continue;
    if (++i == argc) return false;
    const std::string value = argv[i];
    int64_t number = 0;
    if (name == "--only") options->only = value;
    if (name == "--dump") options->dump = value;
    if (name == "--only" || name == "--dump") continue;
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
                 "[--worst NAMES] [--only PART_OF_NAME] [--csv] [--bare] [--screen] "
                 "[--dump FOLDER]\n");
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
    const auto measure = options.bare ? MeasureBare : Measure;
    all = measure(cases[i], models[cases[i].model], options, &survey) && all;
  }
  if (!options.csv) Print(survey, options.worst);
  return all ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
