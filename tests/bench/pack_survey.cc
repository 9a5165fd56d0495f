// What packing leaves over the training programs of pack_cases.h: by orders, or with --pages DEVICE
// by orders and, where those leave more than 1 % of the arena, with pages at second addresses as
// large as they are on that device (cpu, cuda). Layouts are taken in an order of which every
// beginning is a fair sample; --stride, --offset, --seconds and --only bound it. With --ledger FILE
// it keeps what is packed (pack_ledger.h) and goes on from there. --dump keeps the problems of
// which orders leave more than 1 %, to be studied.
//
// Prints a table and the stages that are farthest off; results/pack-*.md keeps what was measured.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/compiler/pack/pack.h"
#include "coordinator/compiler/pack/pages.h"
#include "coordinator/compiler/pack/problem.h"
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
};

double Over(int64_t bytes, int64_t bound) {
  return static_cast<double>(bytes) / static_cast<double>(bound) - 1;
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
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
void PackPaged(const DeviceLives& lives, const std::string& device, Packing* packing) {
  const int64_t base = lives.persistent_bytes;
  const PagedProblem problem = {MakePackProblem(lives.buffers), packing->offsets};
  const PageRules rules = {.base_bytes = base,
                           .page_bytes = PackPageBytes(device, base + packing->arena_bytes)};
  const auto paged = PackIntoPages({{problem}}, rules);
  if (paged.has_value()) packing->arena_bytes = paged->arena_bytes - base;
}

// Fills what `row` says of the packing. False when the packer refuses the problem.
bool PackStage(const DeviceLives& lives, const Options& options, PackedStage* row) {
  const int64_t base = lives.persistent_bytes;
  const auto start = std::chrono::steady_clock::now();
  auto packing = Pack(lives.buffers);
  if (!packing.ok()) return false;
  const bool far = IsFar(*packing, base);
  if (!options.pages.empty() && far) PackPaged(lives, options.pages, &*packing);
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

// Equal problems are packed once.
bool Measure(const Case& c, const SurveyModel& survey_model, const Options& options,
             PackLedger* ledger) {
  if (ledger->Has(c.name)) return true;
  const Model model = ModelOf(survey_model);
  v1::JobSpec spec = SpecOf(survey_model);
  spec.mutable_layout()->set_packing("contiguous");
  const auto programs = Compile({.spec = &spec, .model = &model, .layout = c.layout});
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
    if (known != nullptr) {
      row.arena_bytes = known->arena_bytes;
      row.bound_bytes = known->bound_bytes;
    } else if (!PackStage(lives, options, &row)) {
      return false;
    }
    rows.push_back(row);
  }
  return ledger->Add(rows);
}

// What the ledger has, of this and of earlier calls.
Survey SurveyOf(const PackLedger& ledger) {
  Survey survey = {.layouts = ledger.layouts()};
  for (const PackedStage& row : ledger.Rows()) {
    survey.stages.push_back({.name = absl::StrCat(row.layout, " stage ", row.stage),
                             .bound_bytes = row.bound_bytes,
                             .over = row.over()});
    survey.slowest_seconds = std::max(survey.slowest_seconds, row.seconds);
  }
  return survey;
}

// False for what is no option of this program.
bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
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
  return argc % 2 == 1 && (pages.empty() || pages == "cpu" || pages == "cuda");
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
                 "[--worst NAMES] [--only PART_OF_NAME] [--pages cpu|cuda] [--ledger FILE] "
                 "[--dump FOLDER]\n");
    return 2;
  }

  const std::vector<SurveyModel> models = Models();
  std::vector<Case> cases;
  for (size_t i = 0; i < models.size(); ++i) AddCases(models[i], i, &cases);
  std::erase_if(cases,
                [&](const Case& c) { return c.name.find(options.only) == std::string::npos; });
  const auto start = std::chrono::steady_clock::now();
  PackLedger ledger(options.ledger);
  bool all = true;
  const size_t step = SpreadStep(cases.size());
  for (size_t i = options.offset; i < cases.size(); i += options.stride) {
    if (Seconds(start) > options.seconds) {
      std::fprintf(stderr, "stopped at layout %zu of %zu\n", i, cases.size());
      all = false;
      break;
    }
    const Case& c = cases[i * step % cases.size()];
    all = Measure(c, models[c.model], options, &ledger) && all;
  }
  Print(SurveyOf(ledger), options.worst);
  return all ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
