// SPDX-License-Identifier: Apache-2.0
#include "coordinator/evaluation/evaluation.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "coordinator/evaluation/largest.h"
#include "coordinator/evaluation/row.h"
#include "coordinator/evaluation/techniques.h"
#include "coordinator/model/model.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/prepare.h"
#include "coordinator/prepare/variations.h"
#include "proto/report/evaluation_words.h"
#include "proto/report/layout_text.h"

namespace terrace {
namespace {

constexpr int64_t kMicroBatchMax = int64_t{1} << 16;
constexpr int64_t kSequenceMax = int64_t{1} << 22;
constexpr char kMicroBatch[] = "layout.micro_batch";
constexpr char kGlobalBatch[] = "train.global_batch";
constexpr char kSequenceLength[] = "data.sequence_length";

// The smallest multiple of `unit` that is no smaller.
int64_t RoundedUp(int64_t number, int64_t unit) { return (number + unit - 1) / unit * unit; }

// Lengths are tried in steps of about a sixteenth of the job's own.
int64_t SequenceStep(int64_t length) {
  int64_t step = 16;
  while (step < 256 && 32 * step <= length) step *= 2;
  return step;
}

class Evaluator {
 public:
  Evaluator(const v1::JobSpec& spec, const Budget& budget, const EvaluationOptions& options)
      : spec_(spec), budget_(budget), options_(options) {}

  absl::StatusOr<v1::Evaluation> Run() {
    const std::vector<Technique>& techniques = Techniques();
    parts_ = static_cast<uint32_t>(2 + techniques.size() + 4);
    evaluation_.set_complete(true);
    RETURN_IF_ERROR(PlanAsItIs());
    ChooseBatch();
    RETURN_IF_ERROR(AddRow(nullptr, evaluation_.mutable_none()));
    for (const Technique& technique : techniques) {
      RETURN_IF_ERROR(AddRow(&technique, evaluation_.add_techniques()));
    }
    CompareRow(evaluation_.none(), evaluation_.mutable_planned());
    AddSizes(nullptr, evaluation_.mutable_none());
    AddSizesOfPlan();
    if (!options_.brief) AddSizesOfTechniques();
    AddRemarks();
    return std::move(evaluation_);
  }

 private:
  // A part, of which a person may want to know.
  void Begin(const std::string& words) {
    if (!options_.tell) return;
    v1::EvaluationProgress progress;
    progress.set_done(parts_done_++);
    progress.set_of(std::max(parts_, parts_done_));
    progress.set_words(words);
    options_.tell(progress);
  }

  bool MayPlan() {
    if (!options_.goes_on || options_.goes_on()) return true;
    evaluation_.set_complete(false);
    return false;
  }

  absl::StatusOr<Prepared> Planned(const v1::JobSpec& spec) {
    evaluation_.set_plans(evaluation_.plans() + 1);
    absl::StatusOr<Prepared> prepared = PrepareToCompare(spec, budget_, options_.in_time);
    if (absl::IsDeadlineExceeded(prepared.status())) evaluation_.set_complete(false);
    return prepared;
  }

  absl::Status PlanAsItIs() {
    Begin("the plan of the job as it is");
    evaluation_.set_plans(1);
    ASSIGN_OR_RETURN(const Prepared prepared, PrepareAnyway(spec_, budget_, {}, options_.in_time));
    const v1::Plan& plan = prepared.plan;
    evaluation_.set_job(plan.job());
    *evaluation_.mutable_model() = plan.model();
    *evaluation_.mutable_profile() = plan.profile();
    evaluation_.set_ranks(budget_.ranks);
    evaluation_.set_nodes(budget_.nodes);
    evaluation_.set_precision(PrecisionText(plan.layout()));
    evaluation_.set_device_limit_bytes(budget_.device_memory_bytes);
    evaluation_.set_host_limit_bytes(LimitsOf(spec_).host_bytes);
    evaluation_.set_nvme_limit_bytes(LimitsOf(spec_).nvme_bytes);
    v1::EvaluatedRow& row = *evaluation_.mutable_planned();
    row.set_name("as planned");
    row.set_meaning("What `terrace plan` chooses for the spec as it is.");
    FillRow(prepared, &row);
    if (prepared.refusal.ok()) return absl::OkStatus();
    evaluation_.set_advice(std::string(prepared.refusal.message()));
    const Evaluated needed = {.layout = {},
                              .programs = {},
                              .simulation = {},
                              .device_bytes = row.device_bytes(),
                              .host_bytes = row.host_bytes(),
                              .nvme_bytes = row.nvme_bytes()};
    row.set_excess(NeedsMore(spec_, budget_, needed));
    return absl::OkStatus();
  }

  // One that every rank has an equal part of, so that rows differ in their technique only.
  void ChooseBatch() {
    const int64_t ranks = budget_.ranks, batch = spec_.train().global_batch();
    int64_t micro = spec_.layout().micro_batch();
    if (micro == 0 && batch % ranks == 0) {
      micro = evaluation_.planned().layout().micro_batch();
      while (batch / ranks % micro != 0) --micro;
    }
    micro = std::max<int64_t>(1, micro);
    evaluation_.set_micro_batch(micro);
    evaluation_.set_global_batch(RoundedUp(batch, micro * ranks));
  }

  // Of a technique, or of none; `settings` gets what it sets.
  v1::JobSpec SpecOf(const Technique* technique, std::vector<v1::SpecSetting>* settings) const {
    v1::JobSpec spec = WithTechnique(spec_, technique, settings);
    if (spec.layout().micro_batch() == 0) {
      SetTo(kMicroBatch, evaluation_.micro_batch(), &spec, settings);
    }
    if (evaluation_.global_batch() != spec_.train().global_batch()) {
      SetTo(kGlobalBatch, evaluation_.global_batch(), &spec, settings);
    }
    return spec;
  }

  static void SetTo(const char* key, int64_t value, v1::JobSpec* spec,
                    std::vector<v1::SpecSetting>* settings) {
    const std::string text = absl::StrCat(value);
    Apply({key, text}, spec);
    settings->emplace_back().set_key(key);
    settings->back().set_value(text);
  }

  absl::Status AddRow(const Technique* technique, v1::EvaluatedRow* row) {
    row->set_name(technique == nullptr ? "none" : std::string(technique->name));
    row->set_meaning(technique == nullptr
                         ? "Data parallelism alone: every rank has all of it on its device."
                         : std::string(technique->meaning));
    if (technique != nullptr) {
      row->set_group(std::string(technique->group));
      row->set_changes_training(technique->changes_training);
    }
    std::vector<v1::SpecSetting> settings;
    const v1::JobSpec spec = SpecOf(technique, &settings);
    row->mutable_settings()->Assign(settings.begin(), settings.end());
    Begin(RowName(*row));
    const absl::StatusOr<Prepared> prepared =
        MayPlan() ? Planned(spec) : absl::DeadlineExceededError("");
    if (absl::IsDeadlineExceeded(prepared.status())) {
      row->set_impossible("not planned: its time was over");
      return absl::OkStatus();
    }
    if (!prepared.ok()) {
      if (absl::IsInternal(prepared.status())) return prepared.status();
      row->set_impossible(std::string(prepared.status().message()));
      return absl::OkStatus();
    }
    FillRow(*prepared, row);
    if (technique == nullptr) return absl::OkStatus();
    CompareRow(evaluation_.none(), row);
    const std::string before = evaluation_.none().layout().SerializeAsString();
    if (evaluation_.none().impossible().empty() && before == row->layout().SerializeAsString()) {
      v1::EvaluatedRow without = *row;
      row->Clear();
      row->set_name(without.name());
      row->set_group(without.group());
      row->set_meaning(without.meaning());
      *row->mutable_settings() = without.settings();
      row->set_impossible(std::string(technique->no_effect));
    }
    return absl::OkStatus();
  }

  // ---- largest sizes ----

  // Whether a spec fits; nothing when there is no time to plan it.
  std::optional<Fit> FitOf(const v1::JobSpec& spec) {
    if (!MayPlan()) return std::nullopt;
    const absl::StatusOr<Prepared> prepared = Planned(spec);
    if (absl::IsDeadlineExceeded(prepared.status())) return std::nullopt;
    if (!prepared.ok())
      return Fit{.fits = false, .reason = std::string(prepared.status().message())};
    return Fit{.fits = prepared->refusal.ok(), .reason = std::string(prepared->refusal.message())};
  }

  // What a plan refuses it refuses after another look at what its spec leaves open.
  void Confirm(const v1::JobSpec& refused, v1::LargestSize* size) {
    if (!MayPlan()) return size->set_at_least(true);
    evaluation_.set_plans(evaluation_.plans() + 1);
    const absl::Status status = Prepare(refused, budget_, options_.in_time).status();
    if (absl::IsDeadlineExceeded(status)) {
      evaluation_.set_complete(false);
      return size->set_at_least(true);
    }
    if (!status.ok()) return;
    size->set_value(size->refused());
    size->clear_refused();
    size->clear_reason();
    size->set_at_least(true);
  }

  // A batch that so many ranks and micro-batches divide, no smaller than the job's own.
  int64_t BatchOf(int64_t micro_batch, int64_t ranks, int64_t stages) const {
    const int64_t unit = micro_batch * ranks;
    return std::max(RoundedUp(spec_.train().global_batch(), unit), unit * stages);
  }

  void AddSizes(const Technique* technique, v1::EvaluatedRow* row) {
    if (row->name().empty() || !IsPossible(*row)) return;
    std::vector<v1::SpecSetting> settings;
    const v1::JobSpec base = SpecOf(technique, &settings);
    const v1::Layout& layout = row->layout();
    const int64_t dp = layout.data_parallel(), pp = layout.pipeline_parallel();
    Begin(absl::StrCat("the largest micro-batch, ", RowName(*row)));
    const bool pinned = technique != nullptr && technique->group == "micro-batch";
    if (!pinned) AddMicroBatch(base, dp, pp, row->mutable_micro_batch());
    Begin(absl::StrCat("the longest sequence, ", RowName(*row)));
    AddSequence(base, dp, pp, row->mutable_sequence_length());
  }

  void AddSizesOfPlan() {
    v1::EvaluatedRow* row = evaluation_.mutable_planned();
    Begin("the largest micro-batch, as planned");
    AddMicroBatch(spec_, budget_.ranks, 1, row->mutable_micro_batch());
    Begin("the longest sequence, as planned");
    AddSequence(spec_, budget_.ranks, 1, row->mutable_sequence_length());
  }

  void AddSizesOfTechniques() {
    const std::vector<Technique>& techniques = Techniques();
    const auto& rows = evaluation_.techniques();
    parts_ += 2 * static_cast<uint32_t>(std::count_if(rows.begin(), rows.end(), IsPossible));
    for (size_t i = 0; i < techniques.size(); ++i) {
      AddSizes(&techniques[i], evaluation_.mutable_techniques(static_cast<int>(i)));
    }
  }

  static bool IsPossible(const v1::EvaluatedRow& row) { return row.impossible().empty(); }

  // Of a size and the keys that go with it.
  using Sized = std::function<std::vector<v1::SpecSetting>(int64_t size, v1::JobSpec* spec)>;

  void AddMicroBatch(const v1::JobSpec& base, int64_t ranks, int64_t stages,
                     v1::LargestSize* size) {
    const Steps steps = {.step = 1, .most = kMicroBatchMax, .first = evaluation_.micro_batch()};
    Find(base, steps, size, [&](int64_t micro_batch, v1::JobSpec* spec) {
      std::vector<v1::SpecSetting> settings;
      SetTo(kMicroBatch, micro_batch, spec, &settings);
      SetTo(kGlobalBatch, BatchOf(micro_batch, ranks, stages), spec, &settings);
      return settings;
    });
    if (size->value() == steps.most) size->set_reason("nothing larger is tried");
  }

  void AddSequence(const v1::JobSpec& base, int64_t ranks, int64_t stages, v1::LargestSize* size) {
    const int64_t length = spec_.data().sequence_length();
    const absl::StatusOr<Model> model = ReadModel(spec_);
    const int64_t positions = model.ok() ? model->config.max_positions : kSequenceMax;
    const Steps steps = {
        .step = SequenceStep(length), .most = std::min(kSequenceMax, positions), .first = length};
    Find(base, steps, size, [&](int64_t tokens, v1::JobSpec* spec) {
      std::vector<v1::SpecSetting> settings;
      SetSequenceLength(tokens, spec);
      SetTo(kSequenceLength, tokens, spec, &settings);
      SetTo(kMicroBatch, 1, spec, &settings);
      SetTo(kGlobalBatch, BatchOf(1, ranks, stages), spec, &settings);
      return settings;
    });
    if (size->value() == steps.most) {
      size->set_reason(steps.most < positions
                           ? "nothing larger is tried"
                           : absl::StrCat("the model has ", steps.most, " positions"));
    }
  }

  void Find(const v1::JobSpec& base, const Steps& steps, v1::LargestSize* size,
            const Sized& sized) {
    const auto spec_of = [&](int64_t value) {
      v1::JobSpec spec = base;
      sized(value, &spec);
      return spec;
    };
    const Largest largest =
        LargestThatFits(steps, [&](int64_t value) { return FitOf(spec_of(value)); });
    size->set_value(largest.value);
    size->set_refused(largest.refused);
    size->set_reason(largest.reason);
    size->set_at_least(largest.ended);
    if (&base == &spec_ && size->refused() > 0) Confirm(spec_of(size->refused()), size);
    if (size->value() == 0) return;
    v1::JobSpec spec = base;
    const std::vector<v1::SpecSetting> settings = sized(size->value(), &spec);
    size->mutable_settings()->Assign(settings.begin(), settings.end());
  }

  void AddRemarks() {
    const std::vector<std::string> left_out = LeftOut(spec_);
    if (!left_out.empty()) {
      evaluation_.add_remarks(
          absl::StrCat("all rows but the planned one leave out what the spec says of ",
                       absl::StrJoin(left_out, ", "), ", so that each shows one technique alone"));
    }
    if (evaluation_.global_batch() != spec_.train().global_batch()) {
      evaluation_.add_remarks(absl::StrCat(
          "all rows but the planned one have train.global_batch ", evaluation_.global_batch(),
          " instead of ", spec_.train().global_batch(), ", so that each of the ", budget_.ranks,
          budget_.ranks == 1 ? " rank has" : " ranks has", " whole micro-batches"));
    }
    if (evaluation_.profile().shared_cores()) {
      evaluation_.add_remarks(
          "a CPU rank's device memory is a part of the host's memory: what rests on the host "
          "leaves "
          "the budget of resources.device_memory, not the machine");
    }
    if (spec_.resources().nvme().paths().empty()) {
      evaluation_.add_remarks(
          "rows on NVMe are planned for a drive of usual speed: resources.nvme has to name a "
          "folder "
          "before such a job can run");
    }
    if (budget_.device_memory_bytes == 0) {
      evaluation_.add_remarks(
          "no limit of device memory is known, so everything fits: set resources.device_memory");
    }
  }

  const v1::JobSpec& spec_;
  const Budget& budget_;
  const EvaluationOptions& options_;
  v1::Evaluation evaluation_;
  uint32_t parts_ = 0, parts_done_ = 0;
};

}  // namespace

absl::StatusOr<v1::Evaluation> EvaluateJob(const v1::JobSpec& spec, const Budget& budget,
                                           const EvaluationOptions& options) {
  return Evaluator(spec, budget, options).Run();
}

}  // namespace terrace
