// Compares layouts by closed form and keeps those worth trying: of layouts that are alike (the same
// degrees, ZeRO stage, schedule, micro-batch and classes of memory away) the few fastest, and the
// fastest of every tenth of memory less.
//
// Layouts that do not fit bring forth others that may: with just as many layers recomputed as
// is needed, with just as much of the states on the tiers that there are, in tiles.
//
// Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/planner/estimate.h"
#include "coordinator/planner/fit.h"
#include "coordinator/planner/planner.h"

namespace terrace {

inline bool Faster(const Proposal& a, const Proposal& b) { return a.seconds < b.seconds; }
// At most so many, in order.
void KeepFastest(size_t most, std::vector<Proposal>* proposals);

// Borrows what it is made with. Used by one thread.
class Comparison {
 public:
  Comparison(const v1::JobSpec& spec, const Model& model, const Budget& budget, Search search);

  // Complete, as of ForEachLayout.
  void Add(v1::Layout layout);
  // Once. REQUIRES: something was added. MoveAndTile(true) is part of it.
  Proposals Take();
  // Instead of Take(): what does not fit but comes near to the limits, as it is and, where there
  // are tiers, on the way and with the part away that comes nearest, the nearest first.
  std::vector<Proposal> TakeNearly();
  // Less is tried of the smallest layout alone than of each split's.
  void MoveAndTile(bool of_all_splits);

  // Of those compared so far some is not infeasible.
  bool any_hopeful() const { return !by_size_.empty() || !farther_.empty(); }
  int64_t compared() const { return compared_; }

 private:
  // tp, pp, cp, ZeRO stage, micro-batch, schedule and chunks, classes away.
  using FamilyKey = std::array<uint32_t, 7>;
  using SplitKey = std::array<uint32_t, 4>;  // of these pp, cp, tp, ZeRO stage
  static SplitKey SplitOf(const v1::Layout& layout);
  struct Family {
    std::vector<Proposal> within, beyond;  // the limits; the fastest first
  };

  Proposal Compare(v1::Layout layout);
  double StepSeconds(const v1::Layout& layout);
  void Keep(const Proposal& one, bool within);
  bool IsFar(const Proposal& one) const;
  void KeepMovable(const Proposal& one);
  void KeepBesideItsStates(const Proposal& one, const std::string& which);
  void AddMixed(const Proposal& large, const Proposal& next);
  std::vector<OffloadWay> Ways() const;
  // All that the way moves away, in the formats that are worth it.
  std::vector<v1::Layout> Farthest(const Proposal& one, OffloadWay way) const;
  // With the smallest part away that keeps to the limits.
  std::optional<Proposal> Moved(const v1::Layout& farthest, OffloadWay way,
                                const ArenaLimits& limits);
  void AddMoved(bool of_all_splits);
  // Weights that are prefetched for each use in as few bits as products need, or without a copy
  // beside their masters; of what only has to fit also those that stay where their masters do not.
  std::vector<v1::Layout> Formats(const v1::Layout& layout, bool all_away) const;
  // In the order in which they are moved.
  std::vector<Proposal> TakeMovable(bool of_all_splits);
  void AddAllMoved(std::vector<Proposal> bases);
  void AddTiled();
  bool Tileable(const v1::Layout& layout) const;
  // So large that a step of what is offloaded can be compiled.
  void ChooseChunks(v1::Layout* layout) const;
  bool IsShort(const v1::Layout& layout) const;
  bool IsSoonCompiled(const v1::Layout& layout) const;
  // Kinds of which a short layout seems to fit: longer ones are not proposed then.
  std::set<LayoutKind> KindsThatFitShort() const;
  // The fastest of those that fit, the fastest of those a tenth smaller, and so on.
  std::vector<Proposal> Smaller() const;
  std::vector<Proposal> Plainer() const;
  // Those with everything away, the farthest below the limits first.
  std::vector<Proposal> Away() const;

  const v1::JobSpec& spec_;
  const Budget& budget_;
  const Search search_;
  const int64_t layers_;
  const ArenaLimits limits_;
  const MemoryEstimator memory_;
  const TimeEstimator time_;
  // By what it depends on: tp, cp, the micro-batch, sequence parallelism.
  std::map<std::array<uint32_t, 4>, PassTime> passes_;
  std::map<FamilyKey, Family> families_;
  std::map<int, Proposal> by_size_;  // the fastest by the logarithm of its bytes
  // Not infeasible, but so far over the limits that few such fit: the smallest of each split.
  std::map<SplitKey, Proposal> farther_;
  std::vector<Proposal> movable_;
  // Of each split the fastest of each recompute, and the smallest of one micro-batch and of more.
  std::map<std::pair<SplitKey, std::string>, Proposal> movable_of_;
  double movable_max_ = 1e300;  // seconds
  std::vector<Proposal> away_;  // everything
  std::optional<Proposal> smallest_;
  std::optional<Proposal> smallest_shown_;  // of those that are soon compiled
  std::optional<Proposal> tileable_;        // the smallest that tiles may make smaller
  int64_t compared_ = 0;
};

}  // namespace terrace
