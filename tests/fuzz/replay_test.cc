// The stored corpus through every target, as it is and in a fixed set of mutations: what a fuzzer
// once found stays found, and a reader that trusts its input is noticed without one.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace terrace {
namespace {

constexpr int kMutantsOfASeed = 150;

std::vector<std::string> SeedsOf(std::string_view target) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(TERRACE_FUZZ_CORPUS) / std::string(target)))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

// One to four changes of a kind that breaks readers: bits, bytes, cuts, repeats, other numbers,
// pieces of another seed.
std::string Mutated(std::string text, const std::vector<std::string>& seeds, std::mt19937_64* rng) {
  const auto below = [rng](size_t n) {
    return static_cast<size_t>((*rng)() % std::max<size_t>(n, 1));
  };
  constexpr std::string_view kTroubles[] = {
      "-1",   "99999999999999999999",    "1e999",   "null", "{", "[", "\"",
      "\xff", std::string_view("\0", 1), "\\u0000", "NaN"};
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const size_t at = below(text.size()), count = below(std::min<size_t>(text.size() - at, 64));
    switch (below(6)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        text.erase(at, count);
        break;
      case 2:
        text.insert(at, text.substr(at, count));
        break;
      case 3:
        text.insert(at, kTroubles[below(std::size(kTroubles))]);
        break;
      case 4:
        text.replace(at, count, kTroubles[below(std::size(kTroubles))]);
        break;
      default: {
        const std::string& other = seeds[below(seeds.size())];
        text.replace(at, count, other.substr(below(other.size()), 64));
      }
    }
  }
  return text;
}

class ReplayTest : public testing::TestWithParam<FuzzTarget> {};

INSTANTIATE_TEST_SUITE_P(Targets, ReplayTest, testing::ValuesIn(kFuzzTargets),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ReplayTest, NoSeedAndNoMutantBreaksIt) {
  const std::vector<std::string> seeds = SeedsOf(GetParam().name);
  ASSERT_FALSE(seeds.empty()) << "a target without a corpus";
  std::mt19937_64 rng(20261128);
  for (const std::string& seed : seeds) {
    GetParam().run(seed);
    for (int i = 0; i < kMutantsOfASeed; ++i) GetParam().run(Mutated(seed, seeds, &rng));
  }
  GetParam().run("");
}

}  // namespace
}  // namespace terrace
