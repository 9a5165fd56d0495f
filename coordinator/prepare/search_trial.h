// Tries proposed layouts exactly, the fastest by closed form first, until enough of them fit.
//
// What one layout really needs corrects what is asked of it next: a stage that is over its bytes
// computes more layers again. The part by which closed forms were off in bytes is learned for the
// layouts that follow, so that misses, which cost as much as hits, stay few. The smallest of all is
// tried where nothing else fits.
//
// It stops by counting layouts and instructions: the same in, the same out. Only where it is given
// something to ask, it may be ended early. What
// compiling a layout will cost is told from its passes and from those compiled before.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/planner/estimate_memory.h"
#include "coordinator/prepare/search_choice.h"

namespace terrace {

struct TrialOptions {
  int fitting_max = 1;  // layouts of a kind that fit before the fastest is chosen
  // Where nothing fits yet, what would take more instructions than these in all is not compiled.
  int64_t instructions_max = 0;
  std::function<bool()> in_time = {};  // as in SearchOptions
};

// DEADLINE_EXCEEDED: what may be tried was not, as there was no time.
absl::Status OutOfTime();

int64_t Instructions(const std::vector<v1::Program>& programs);

// Borrows what it is made with. Used by one thread.
class Trial {
 public:
  Trial(const v1::JobSpec& spec, const Model& model, const Budget& budget, TrialOptions options)
      : spec_(spec),
        model_(model),
        budget_(budget),
        options_(options),
        memory_(EstimateModel(spec, model)) {}

  // `proposals` are the fastest first; those slower than `seconds_max` are left out. When none fits
  // the smallest is tried where `last`. INTERNAL as of the simulator; DEADLINE_EXCEEDED, of all
  // that try, when there is no time for one more.
  absl::Status Try(const std::vector<const Proposal*>& proposals, LayoutKind kind, bool last,
                   double seconds_max);

  // Where nothing fits: these in turn until one does or `more` instructions were compiled besides.
  // Misses do not end it.
  absl::Status TryInTurn(const std::vector<const Proposal*>& proposals, int64_t more);

  // Where what fits turned out slower than its closed form: those that may be worth more than it,
  // within so many instructions more.
  absl::Status TryPromising(std::vector<const Proposal*> proposals, int64_t more);

  // Where nothing was tried, for what it would have cost: the one that costs least.
  absl::Status TryAny(const std::vector<const Proposal*>& proposals);

  bool fits() const;
  // Seconds by closed form of the fastest that fits. REQUIRES: fits().
  double fastest_estimate() const { return fastest_estimate_; }
  int64_t instructions() const { return instructions_; }  // compiled so far
  // False when some were not compiled for what they would have cost.
  bool all_tried() const { return all_tried_; }
  // Layouts of another kind follow, of which those that were tried say nothing.
  void Forget() { off_by_.clear(); }

  // Those that do not fit are not simulated.
  std::vector<TriedLayout> Take() { return std::move(tried_); }
  // Why the first that cannot be compiled cannot; OK when all could that were tried.
  const absl::Status& refusal() const { return refusal_; }

 private:
  // Whether it fits; nothing when it cannot be compiled or was tried before.
  absl::StatusOr<std::optional<bool>> TryOne(const Proposal& proposal, LayoutKind kind,
                                             bool adjust = true);
  // Those that need no more than this part of the device's bytes by closed form.
  absl::Status TryThose(const std::vector<const Proposal*>& proposals, LayoutKind kind, double part,
                        double seconds_max);
  absl::Status TryFaster(const std::vector<const Proposal*>& proposals, LayoutKind kind);
  absl::Status TrySmallest(const std::vector<const Proposal*>& proposals, LayoutKind kind);
  absl::StatusOr<Evaluated> Compiled(const v1::Layout& layout);
  // What is recomputed, chosen for the bytes there are.
  std::optional<v1::Layout> Fitted(const Proposal& proposal, std::vector<int64_t>* targets) const;
  // With less for each stage that is over its bytes; nothing when all is recomputed already.
  std::optional<v1::Layout> Corrected(const Evaluated& one, std::vector<int64_t>* targets) const;
  // With as much elsewhere as each tier has room for, by what this one needs of it; nothing when
  // that is not enough.
  std::optional<v1::Layout> MovedMore(const Evaluated& one, OffloadWay way) const;
  double LengthOf(const v1::Layout& layout) const;  // by closed form
  // By that and by how far it was off with such layouts.
  int64_t InstructionsFor(const v1::Layout& layout) const;
  bool Affordable(const v1::Layout& layout) const;
  bool MayRecompute(const v1::Layout& layout) const;
  bool MayFit(const Proposal& proposal, double part) const;
  ArenaLimits Limits() const;
  // Arena bytes over the estimate, of layouts that are alike (LikenessOf); 0: not known yet.
  double OffBy(const v1::Layout& layout) const;
  void Learn(const Evaluated& one);
  bool Known(const v1::Layout& layout) const;
  int64_t ArenaMax() const;

  const v1::JobSpec& spec_;
  const Model& model_;
  const Budget& budget_;
  TrialOptions options_;
  const MemoryEstimator memory_;
  std::vector<TriedLayout> tried_;
  double fastest_estimate_ = 1e300;
  int64_t instructions_ = 0;  // compiled so far
  bool all_tried_ = true;
  bool must_ = false;                     // compiled whatever it costs
  std::map<std::string, double> off_by_;  // by likeness
  std::map<bool, double> longer_by_;      // a factor, by whether something is offloaded
  absl::Status refusal_;
};

}  // namespace terrace
