// SPDX-License-Identifier: Apache-2.0
#include "proto/tokens/sources.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

DataSourceFiles SourceOf(const v1::DataSpec& spec, int begin, int64_t files, double weight) {
  DataSourceFiles source = {.begin = begin,
                            .end = begin + static_cast<int>(files),
                            .weight = weight,
                            .name = spec.train(begin)};
  if (files > 1) absl::StrAppend(&source.name, " and ", files - 1, " more");
  return source;
}

}  // namespace

absl::StatusOr<std::vector<DataSourceFiles>> SourcesOf(const v1::DataSpec& spec) {
  const int files = spec.train_size();
  if (files == 0) return std::vector<DataSourceFiles>();
  if (spec.mixture().empty()) return std::vector<DataSourceFiles>{SourceOf(spec, 0, files, 1)};
  std::vector<DataSourceFiles> sources;
  int begin = 0;
  for (const v1::MixtureSource& source : spec.mixture()) {
    const int64_t count = source.files();
    if (count < 1 || count > files - begin) break;
    if (!(std::isfinite(source.weight()) && source.weight() > 0)) {
      return absl::InvalidArgumentError(absl::StrCat("data.train: the weight of ",
                                                     spec.train(begin), " is ", source.weight(),
                                                     ", must be a number above 0"));
    }
    sources.push_back(SourceOf(spec, begin, count, source.weight()));
    begin += static_cast<int>(count);
  }
  if (begin == files && static_cast<int>(sources.size()) == spec.mixture_size()) return sources;
  return absl::InvalidArgumentError(
      absl::StrCat("data.train has ", files,
                   " files, which are not those of its sources; write each source as a mapping of "
                   "path and weight"));
}

}  // namespace terrace
