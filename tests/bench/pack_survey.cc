// What packing leaves, and what the waits that earn reuse cost, over the training programs of
// pack_cases.h. Every stage is compared with its own lower bound and with that of the program
// before waits were added; a layout with such waits is simulated with and without them. --bare
// packs the programs as they are without such waits instead, equal problems once; --screen packs
// with orders only, and in full where those leave more than 1 %, so that thousands of layouts are
// done; --orders with nothing else; --pages DEVICE with orders, and where those leave more than
// 1 % with pages at second addresses, as large as they are on that device (cpu, cuda), and in full
// with pages where that does not do either. These go
// through the layouts in an order of which every beginning is a fair sample, and with
// --ledger FILE they keep what is packed (pack_ledger.h) and go on from there; --again packs those
// stages again of which more than 1 % is left. --dump keeps the problems of which (the orders)
// leave more than 1 %, to be studied.
//
// Prints a table of both gaps and the stages that are farthest off, or with --csv a line a stage
// packed with waits: name, arena, own bound, bound before waits, seconds. A stride and a limit of
// seconds bound it; results/pack-*.md keeps what was measured.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/compiler/pack.h"
#include "coordinator/compiler/pack_pages.h"
#include "coordinator/compiler/pack_problem.h"
#include "coordinator/planner/catalogue.h"
#include "coordinator/planner/simulate.h"
#include "tests/bench/pack_cases.h"
#include "tests/bench/pack_ledger.h"
#include "tests/bench/pack_survey_report.h"

namespace terrace {
namespace {

struct Options {
  size_t stride = 9;
  size_t offset = 0;
  double seconds = 600;  // no layout is begun after them
  size_t worst = 20;     // how many are named
  std::string only;      // layouts whose names contain it
  std::string dump;      // a folder for the problems of which more than 1 % is left
  std::string ledger;
  std::string pages;  // of which device; empty: none
  bool csv = false;
  bool bare = false;
  bool screen = false;
  bool orders = false;
  bool again = false;
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

// More than this part of the whole arena is too much.
constexpr double kFar = 0.01;

bool IsFar(const Packing& packing, int64_t base) {
  return Over(base + packing.arena_bytes, base + packing.lower_bound_bytes) > kFar;
}

// With pages at second addresses, where that needs less.
void PackPaged(const DeviceLives& lives, const std::string& device, bool ejects, Packing* packing) {
  const int64_t base = lives.persistent_bytes;
  const PagedProblem problem = {MakePackProblem(lives.buffers), packing->offsets};
  PageRules rules = {.base_bytes = base,
                     .page_bytes = PackPageBytes(device, base + packing->arena_bytes)};
  if (!ejects) rules.eject_steps = 0;
  const auto paged = PackIntoPages({{problem}}, rules);
  if (paged.has_value()) packing->arena_bytes = paged->arena_bytes - base;
}

// With pages for what searches leave, where that needs less.
void PackSearchedAndPaged(const DeviceLives& lives, const std::string& device, Packing* packing) {
  absl::StatusOr<Packing> searched = Pack(lives.buffers, PackEffort::kFull, lives.persistent_bytes);
  if (!searched.ok()) return;
  if (IsFar(*searched, lives.persistent_bytes))
    PackPaged(lives, device, /*ejects=*/false, &*searched);
  if (searched->arena_bytes < packing->arena_bytes) *packing = *std::move(searched);
}

// Fills what `row` says of the packing. False when the packer refuses the problem.
bool PackBare(const DeviceLives& lives, const Options& options, PackedStage* row) {
  const int64_t base = lives.persistent_bytes;
  const auto start = std::chrono::steady_clock::now();
  const bool quick = options.screen || options.orders || !options.pages.empty();
  auto packing = Pack(lives.buffers, quick ? PackEffort::kOrders : PackEffort::kFull, base);
  const bool far = packing.ok() && IsFar(*packing, base);
  if (options.screen && !options.orders && far)
    packing = Pack(lives.buffers, PackEffort::kFull, base);
  if (!options.pages.empty() && far) {
    PackPaged(lives, options.pages, /*ejects=*/true, &*packing);
    if (IsFar(*packing, base)) PackSearchedAndPaged(lives, options.pages, &*packing);
  }
  if (!packing.ok()) return false;
  row->seconds = Seconds(start);
  row->arena_bytes = base + packing->arena_bytes;
  row->bound_bytes = base + packing->lower_bound_bytes;
  if (!options.dump.empty() && far) {
    std::string file = absl::StrCat(row->layout, " stage ", row->stage);
    std::replace(file.begin(), file.end(), ' ', '_');
    Dump(absl::StrCat(options.dump, "/", file, ".csv"), WholeArena(lives));
  }
  return true;
}

// The programs as they are without waits that earn reuse; equal problems are packed once.
bool MeasureBare(const Case& c, const SurveyModel& survey_model, const Options& options,
                 PackLedger* ledger) {
  const double enough = options.again ? kFar : std::numeric_limits<double>::infinity();
  if (ledger->Has(c.name, enough)) return true;
  const Model model = ModelOf(survey_model);
  const v1::JobSpec spec = SpecOf(survey_model);
  const auto programs =
      Compile({.spec = &spec, .model = &model, .layout = c.layout, .search_packings = false});
  if (!programs.ok()) {
    std::fprintf(stderr, "%s: %s\n", c.name.c_str(),
                 std::string(programs.status().message()).c_str());
    return false;
  }
  std::vector<PackedStage> rows;
  for (const v1::Program& program : *programs) {
    const DeviceLives lives = DeviceLivesOf(program);
    const std::vector<PackBuffer> whole = WholeArena(lives);
    PackedStage row = {.layout = c.name, .stage = static_cast<int64_t>(program.stage())};
    row.buffers = static_cast<int64_t>(whole.size());
    row.problem = Fingerprint(whole);
    const PackedStage* known = ledger->Find(row.problem);
    if (known != nullptr && known->over() <= enough) {
      row.arena_bytes = known->arena_bytes;
      row.bound_bytes = known->bound_bytes;
    } else if (!PackBare(lives, options, &row)) {
      return false;
    }
    rows.push_back(row);
  }
  return ledger->Add(rows);
}

// Of the bound, over its whole pages.
double OverPages(const PackedStage& row, const std::string& device) {
  const int64_t page = PackPageBytes(device, row.bound_bytes);
  const int64_t least = (row.bound_bytes + page - 1) / page * page;
  return static_cast<double>(std::max<int64_t>(0, row.arena_bytes - least)) /
         static_cast<double>(row.bound_bytes);
}

// What the ledger has, of this and of earlier calls.
Survey SurveyOf(const PackLedger& ledger, const Options& options) {
  Survey survey = {.layouts = ledger.layouts(), .paged = !options.pages.empty()};
  for (const PackedStage& row : ledger.Rows()) {
    const std::string name = absl::StrCat(row.layout, " stage ", row.stage);
    survey.stages.push_back({name, row.over(), row.over()});
    if (survey.paged) survey.stages.back().over_pages = OverPages(row, options.pages);
    survey.slowest_seconds = std::max(survey.slowest_seconds, row.seconds);
  }
  return survey;
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

// False for what is no option of this program.
bool Parse(int argc, char** argv, Options* options) {
  const std::map<std::string, bool*> flags = {{"--csv", &options->csv},
                                              {"--bare", &options->bare},
                                              {"--screen", &options->screen},
                                              {"--orders", &options->orders},
                                              {"--again", &options->again}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (const auto flag = flags.find(name); flag != flags.end()) {
      *flag->second = true;
      continue;
    }
    if (++i == argc) return false;
    const std::string value = argv[i];
    int64_t number = 0;
    if (name == "--only") options->only = value;
    if (name == "--dump") options->dump = value;
    if (name == "--ledger") options->ledger = value;
    if (name == "--pages") options->pages = value;
    if (name == "--only" || name == "--dump" || name == "--ledger" || name == "--pages") continue;
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
  const std::string& pages = options->pages;
  options->bare |= options->screen || options->orders || !pages.empty();
  return pages.empty() || pages == "cpu" || pages == "cuda";
}

// Multiples of it, modulo `count`, meet everything once and lie evenly spread from the beginning.
size_t SpreadStep(size_t count) {
  size_t step = std::max<size_t>(1, count * 382 / 1000);
  while (std::gcd(step, count) != 1) ++step;
  return step;
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: pack_survey [--stride LAYOUTS] [--offset LAYOUT] [--seconds LIMIT] "
                 "[--worst NAMES] [--only PART_OF_NAME] [--csv] [--bare] [--screen] "
                 "[--orders] [--pages cpu|cuda] [--ledger FILE] [--again] [--dump FOLDER]\n");
    return 2;
  }

  const std::vector<SurveyModel> models = Models();
  std::vector<Case> cases;
  for (size_t i = 0; i < models.size(); ++i) AddCases(models[i], i, &cases);
  std::erase_if(cases,
                [&](const Case& c) { return c.name.find(options.only) == std::string::npos; });
  const auto start = std::chrono::steady_clock::now();
  Survey survey;
  PackLedger ledger(options.ledger);
  bool all = true;
  const size_t step = options.bare ? SpreadStep(cases.size()) : 1;
  for (size_t i = options.offset; i < cases.size(); i += options.stride) {
    if (Seconds(start) > options.seconds) {
      std::fprintf(stderr, "stopped at layout %zu of %zu\n", i, cases.size());
      all = false;
      break;
    }
    const Case& c = cases[i * step % cases.size()];
    const bool measured = options.bare ? MeasureBare(c, models[c.model], options, &ledger)
                                       : Measure(c, models[c.model], options, &survey);
    all = measured && all;
  }
  if (options.bare) survey = SurveyOf(ledger, options);
  if (!options.csv) Print(survey, options.worst);
  return all ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
