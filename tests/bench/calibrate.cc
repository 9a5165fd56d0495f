// Predictions of published runs beside what was measured, as a table in Markdown: how good the time
// model of the catalogue is. See tests/support/published_runs.h.
//
// With --blind each source by constants that were fitted without it (tests/support/blind_errors.h).
// With --simulate what a plan would say of the same layouts (tests/support/simulated_runs.h);
// another argument then names rows by a part of their names.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <string_view>

#include "tests/support/blind_errors.h"
#include "tests/support/published_runs.h"
#include "tests/support/simulated_runs.h"

namespace terrace {
namespace {

void PrintRuns(const std::vector<PublishedRun>& runs) {
  std::printf("| run | device | measured tok/s | predicted | error %% | TFLOP/s |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const PublishedRun& run : runs) {
    if (!run.not_expressible.empty()) continue;
    const Prediction p = Predict(run);
    const double measured = run.tokens_per_second_per_device;
    std::printf("| %s%s | %s | %.0f | %.0f | %+.1f | %.0f |\n", run.id.c_str(),
                run.beyond_the_spec ? " (fp8)" : "", run.profile.name().c_str(), measured,
                p.tokens_per_second_per_device,
                100 * (p.tokens_per_second_per_device / measured - 1), p.tflops_per_device);
  }
}

// Rows whose name contains `part`.
void PrintSimulated(const std::vector<PublishedRun>& runs, std::string_view part) {
  std::printf(
      "| run | device | measured tok/s | closed form | error %% | simulated | error %% |\n"
      "|---|---|---|---|---|---|---|\n");
  double closed_error = 0, simulated_error = 0, bias = 0;
  int count = 0;
  for (const PublishedRun& run : runs) {
    const double measured = run.tokens_per_second_per_device;
    if (!run.not_expressible.empty() || run.beyond_the_spec || measured <= 0) continue;
    if (run.id.find(part) == std::string::npos) continue;
    const auto simulated = SimulatedTokensPerSecond(run);
    if (!simulated.ok()) {
      std::fprintf(stderr, "%s: %s\n", run.id.c_str(),
                   std::string(simulated.status().message()).c_str());
      continue;
    }
    const double closed = Predict(run).tokens_per_second_per_device / measured - 1;
    const double error = *simulated / measured - 1;
    std::printf("| %s | %s | %.0f | %.0f | %+.1f | %.0f | %+.1f |\n", run.id.c_str(),
                run.profile.name().c_str(), measured, (closed + 1) * measured, 100 * closed,
                *simulated, 100 * error);
    std::fflush(stdout);
    closed_error += std::abs(closed);
    simulated_error += std::abs(error);
    bias += error;
    ++count;
  }
  if (count == 0) return;
  std::printf("\n%d runs: mean error %.1f %% closed, %.1f %% simulated (bias %+.1f %%)\n", count,
              100 * closed_error / count, 100 * simulated_error / count, 100 * bias / count);
}

void PrintSources(const std::vector<PublishedRun>& runs) {
  std::printf(
      "\n| source | runs | mean error %% | bias %% | pairs over 15 %% apart | ranked wrong |\n");
  std::printf("|---|---|---|---|---|---|\n");
  std::set<std::string> sources = {""};
  for (const PublishedRun& run : runs) sources.insert(SourceOf(run));
  for (const std::string& source : sources) {
    const Errors e = ErrorsOf(runs, source);
    if (e.runs == 0) continue;
    std::printf("| %s | %d | %.1f | %+.1f | %d | %d |\n", source.empty() ? "all" : source.c_str(),
                e.runs, 100 * e.mean_error, 100 * e.bias, e.pairs, e.pairs_wrong);
  }
  std::printf("\nLeaving each source out and scaling by the others: %.1f %%.\n",
              100 * LeaveOneSourceOutError(runs));
}

void PrintMemory(const std::vector<PublishedRun>& runs) {
  std::printf(
      "\n| run | measured GiB | with their states | error %% | ours |\n|---|---|---|---|---|\n");
  for (const PublishedRun& run : runs) {
    if (run.memory_gib <= 0) continue;
    const Prediction p = Predict(run);
    std::printf("| %s | %.1f | %.1f | %+.1f | %.1f |\n", run.id.c_str(), run.memory_gib,
                p.their_memory_gib, 100 * (p.their_memory_gib / run.memory_gib - 1), p.memory_gib);
  }
}

void PrintBlindRuns(const char* title, const std::vector<BlindPrediction>& predictions) {
  std::printf("\n## %s\n\n| run | measured tok/s | predicted | error %% |\n|---|---|---|---|\n",
              title);
  std::set<std::string> sources = {""};
  for (const BlindPrediction& one : predictions) {
    sources.insert(SourceOf(*one.run));
    std::printf("| %s | %.0f | %.0f | %+.1f |\n", one.run->id.c_str(),
                one.run->tokens_per_second_per_device, one.tokens_per_second_per_device,
                100 * (one.TimeRatio() - 1));
  }
  std::printf(
      "\n| source | runs | median error %% | mean %% | signed %% | worst %% |\n"
      "|---|---|---|---|---|---|\n");
  for (const std::string& source : sources) {
    const BlindSummary s = SummaryOf(predictions, source);
    std::printf("| %s | %d | %.1f | %.1f | %+.1f | %.1f |\n",
                source.empty() ? "all" : source.c_str(), s.runs, 100 * s.median, 100 * s.mean,
                100 * s.bias, 100 * s.worst);
  }
}

// What a plan would say of the same layouts: programs simulated with the same constants.
void Simulate(std::vector<BlindPrediction>* predictions) {
  for (BlindPrediction& one : *predictions) {
    if (one.run->beyond_the_spec) continue;
    PublishedRun run = *one.run;
    run.profile = one.profile;
    const auto simulated = SimulatedTokensPerSecond(run);
    if (simulated.ok()) one.tokens_per_second_per_device = *simulated;
    if (!simulated.ok()) {
      std::fprintf(stderr, "%s: %s\n", run.id.c_str(),
                   std::string(simulated.status().message()).c_str());
    }
  }
}

int PrintBlind(const std::vector<PublishedRun>& runs) {
  const auto unseen = ReadPublishedRuns(TERRACE_TEST_DATA "/blind_runs.csv");
  const auto fused = ReadPublishedRuns(TERRACE_TEST_DATA "/blind_runs.csv", true);
  if (!unseen.ok() || !fused.ok()) {
    std::fprintf(stderr, "calibrate: %s\n", std::string(unseen.status().message()).c_str());
    return 1;
  }
  std::vector<BlindPrediction> all = LeaveOneSourceOut(runs);
  PrintBlindRuns("Closed form, each source by the constants of the others", all);
  std::vector<BlindPrediction> never = AsCatalogued(*unseen);
  PrintBlindRuns("Closed form, sources that no constant ever saw", never);
  PrintBlindRuns("The same, as if attention had been fused", AsCatalogued(*fused));
  all.insert(all.end(), never.begin(), never.end());
  Simulate(&all);
  PrintBlindRuns("Plans (fp8: closed form)", all);
  const double low = TimeRatioAt(all, 0.1), high = TimeRatioAt(all, 0.9);
  std::printf("\nMeasured over predicted time: %.2f to %.2f for %.0f %% of %zu runs.\n", low, high,
              100 * Coverage(all, low, high), all.size());
  return 0;
}

int Main(int argc, char** argv) {
  const bool simulate = argc > 1 && std::string_view(argv[1]) == "--simulate";
  const bool option = argc > 1 && std::string_view(argv[1]).substr(0, 2) == "--";
  const auto runs =
      ReadPublishedRuns(argc > 1 && !option ? argv[1] : TERRACE_TEST_DATA "/published_runs.csv");
  if (!runs.ok()) {
    std::fprintf(stderr, "calibrate: %s\n", std::string(runs.status().message()).c_str());
    return 1;
  }
  if (simulate) {
    PrintSimulated(*runs, argc > 2 ? argv[2] : "");
    return 0;
  }
  if (argc > 1 && std::string_view(argv[1]) == "--blind") {
    return PrintBlind(*runs);
  }
  PrintRuns(*runs);
  PrintSources(*runs);
  PrintMemory(*runs);
  std::printf("\nLeft out:\n");
  for (const PublishedRun& run : *runs) {
    if (!run.not_expressible.empty()) {
      std::printf("- %s: %s\n", run.id.c_str(), run.not_expressible.c_str());
    }
  }
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
