// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron/layout.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr char kFirstStage[] = "decoder-first-pipeline-num-layers";
constexpr char kLastStage[] = "decoder-last-pipeline-num-layers";

// The flags, and why one has no effect where nothing has become of it.
struct LayoutFlag {
  std::string_view flag;
  std::string_view otherwise;
};
constexpr LayoutFlag kFlags[] = {
    {"recompute-granularity", ""},
    {"recompute-method", "goes with --recompute-granularity full"},
    {"recompute-num-layers", "goes with --recompute-granularity full"},
    {"recompute-modules", "layout.recompute: selective is of norms and activations"},
    {"num-layers-per-virtual-pipeline-stage", "a stage has one chunk, so nothing is interleaved"},
    {"num-virtual-stages-per-pipeline-rank", "a stage has one chunk, so nothing is interleaved"},
    {kFirstStage, ""},
    {kLastStage, ""},
};

class LayoutReader {
 public:
  LayoutReader(const MegatronLine& line, SpecDraft* draft) : line_(line), draft_(draft) {}

  absl::Status Set() {
    RETURN_IF_ERROR(SetRecompute());
    RETURN_IF_ERROR(SetInterleave());
    RETURN_IF_ERROR(SetStages());
    for (const LayoutFlag& one : kFlags) {
      const std::string flag(one.flag);
      if (line_.Given(flag) && !IsTold(flag)) {
        draft_->Automatic(absl::StrCat("--", flag), line_.Value(flag), std::string(one.otherwise));
      }
    }
    return absl::OkStatus();
  }

 private:
  bool IsTold(std::string_view flag) const {
    const std::string setting = absl::StrCat("--", Absl(flag));
    const auto& settings = draft_->settings();
    return std::any_of(settings.begin(), settings.end(),
                       [&](const ImportedSetting& one) { return one.setting == setting; });
  }

  absl::Status SetRecompute() {
    if (!line_.Given("recompute-granularity")) return absl::OkStatus();
    const std::string granularity = line_.Value("recompute-granularity");
    const std::string method =
        line_.Given("recompute-method") ? line_.Value("recompute-method") : "";
    ASSIGN_OR_RETURN(const int64_t every, line_.Number("recompute-num-layers", 1));
    if (granularity == "selective") {
      draft_->Mapped("--recompute-granularity", granularity, "layout.recompute", "selective",
                     "norms and activations; flash attention computes its scores again anyway");
      return absl::OkStatus();
    }
    if (method == "uniform" && every > 1) {
      draft_->Mapped("--recompute-granularity", granularity, "layout.recompute", "every");
      draft_->Mapped("--recompute-num-layers", absl::StrCat(every), "layout.recompute_every",
                     absl::StrCat(every));
      return absl::OkStatus();
    }
    draft_->Mapped("--recompute-granularity", granularity, "layout.recompute", "block",
                   method == "block" && every > 0
                       ? absl::StrCat("of all layers, not only ", every,
                                      " a stage: layout.recompute_layers says it layer by layer")
                       : "");
    return absl::OkStatus();
  }

  absl::Status SetInterleave() {
    ASSIGN_OR_RETURN(const int64_t per_chunk,
                     line_.Number("num-layers-per-virtual-pipeline-stage", 0));
    ASSIGN_OR_RETURN(int64_t chunks, line_.Number("num-virtual-stages-per-pipeline-rank", 0));
    ASSIGN_OR_RETURN(const int64_t layers, line_.Number("num-layers", 0));
    ASSIGN_OR_RETURN(const int64_t stages, line_.Number("pipeline-model-parallel-size", 1));
    if (per_chunk > 0 && layers > 0) chunks = layers / std::max<int64_t>(1, stages) / per_chunk;
    if (chunks <= 1) return absl::OkStatus();
    draft_->Set("layout.schedule", "interleaved");
    draft_->Mapped(per_chunk > 0 ? "--num-layers-per-virtual-pipeline-stage"
                                 : "--num-virtual-stages-per-pipeline-rank",
                   absl::StrCat(per_chunk > 0 ? per_chunk : chunks), "layout.interleave",
                   absl::StrCat(chunks), "with schedule: interleaved");
    return absl::OkStatus();
  }

  // The first and the last stage have the layers that are asked for, the others share the rest.
  absl::Status SetStages() {
    const bool first = line_.Given(kFirstStage), last = line_.Given(kLastStage);
    if (!first && !last) return absl::OkStatus();
    ASSIGN_OR_RETURN(const int64_t layers, line_.Number("num-layers", 0));
    ASSIGN_OR_RETURN(const int64_t stages, line_.Number("pipeline-model-parallel-size", 1));
    ASSIGN_OR_RETURN(const int64_t at_first, line_.Number(kFirstStage, 0));
    ASSIGN_OR_RETURN(const int64_t at_last, line_.Number(kLastStage, 0));
    const int64_t between = stages - (first ? 1 : 0) - (last ? 1 : 0);
    const int64_t rest = layers - at_first - at_last;
    const bool whole = between > 0 ? rest > 0 && rest % between == 0 : between == 0 && rest == 0;
    std::vector<int64_t> counts;
    if (whole && !draft_->Has("layout.interleave")) {
      if (first) counts.push_back(at_first);
      counts.insert(counts.end(), between, between > 0 ? rest / between : 0);
      if (last) counts.push_back(at_last);
    }
    for (const char* flag : {kFirstStage, kLastStage}) {
      if (!line_.Given(flag)) continue;
      const std::string setting = absl::StrCat("--", flag);
      if (counts.empty()) {
        draft_->Absent(setting, line_.Value(flag),
                       "set layout.stage_layers to the layers of each chunk of the model");
      } else {
        draft_->Mapped(setting, line_.Value(flag), "layout.stage_layers",
                       absl::StrCat("[", absl::StrJoin(counts, ", "), "]"));
      }
    }
    return absl::OkStatus();
  }

  const MegatronLine& line_;
  SpecDraft* draft_;
};

}  // namespace

bool IsMegatronLayoutFlag(std::string_view flag) {
  return std::any_of(std::begin(kFlags), std::end(kFlags),
                     [&](const LayoutFlag& one) { return one.flag == flag; });
}

absl::Status SetMegatronLayout(const MegatronLine& line, SpecDraft* draft) {
  return LayoutReader(line, draft).Set();
}

}  // namespace terrace
