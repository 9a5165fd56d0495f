// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/hang.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kPlaceBytesMax = 300;

bool IsOver(const RankView& view) {
  return view.report.state() == v1::RANK_SUCCEEDED || view.report.state() == v1::RANK_FAILED;
}
bool IsStopped(const RankView& view) {
  return view.report.place().process() == v1::PROCESS_STOPPED &&
         view.report.place().standing_ms() >= kStoppedMs;
}

// May be told to stand: in a step, or for far longer in a checkpoint.
bool Stands(const RankView& view, int64_t standing_ms) {
  const v1::RankPlace& place = view.report.place();
  if (view.report.state() != v1::RANK_RUNNING || !view.report.has_place()) return false;
  if (place.activity() == v1::ACTIVITY_PREPARING) return false;
  const bool saves = place.activity() == v1::ACTIVITY_CHECKPOINT;
  return place.standing_ms() >=
         (saves ? std::max(standing_ms, kCheckpointStandingMs) : standing_ms);
}

// Executes, or is about, something that needs no other rank.
bool IsOnItsOwn(const v1::RankPlace& place) {
  if (place.activity() == v1::ACTIVITY_AGREEING) return false;
  return place.sequence().empty() || !place.instruction().empty();
}

const v1::GroupPlace* GroupIn(const v1::RankPlace& place, const std::string& group) {
  for (const v1::GroupPlace& one : place.groups()) {
    if (one.group() == group) return &one;
  }
  return nullptr;
}

// The rank waits in its exchanges for these members, which have not come to them.
std::vector<const RankView*> BehindOf(const RankView& view,
                                      absl::Span<const RankView* const> ranks) {
  std::vector<const RankView*> behind;
  for (const v1::GroupPlace& own : view.report.place().groups()) {
    if (!own.arrived()) continue;
    for (const RankView* other : ranks) {
      const v1::GroupPlace* place = GroupIn(other->report.place(), own.group());
      if (place == nullptr || other == &view) continue;
      const bool is_there = place->finished() > own.finished() ||
                            (place->finished() == own.finished() && place->arrived());
      if (!is_there) behind.push_back(other);
    }
  }
  return behind;
}

// From one to whom it waits for, until nobody is behind any more.
const RankView* EndOfWaiting(const RankView* view, absl::Span<const RankView* const> ranks) {
  std::set<const RankView*> seen;
  while (seen.insert(view).second) {
    const std::vector<const RankView*> behind = BehindOf(*view, ranks);
    if (behind.empty()) break;
    view = behind.front();
  }
  return view;
}

// Itself, and all others of the exchange that it stands in.
std::vector<const RankView*> SameExchange(const RankView& view,
                                          absl::Span<const RankView* const> ranks) {
  std::vector<const RankView*> found = {&view};
  for (const RankView* other : ranks) {
    const bool same = std::any_of(
        view.report.place().groups().begin(), view.report.place().groups().end(),
        [&](const v1::GroupPlace& own) {
          return own.arrived() && GroupIn(other->report.place(), own.group()) != nullptr;
        });
    if (same && other != &view) found.push_back(other);
  }
  return found;
}

struct Culprits {
  std::vector<const RankView*> ranks;
  bool connection = false;
};

Culprits FindCulprits(absl::Span<const RankView* const> ranks) {
  const auto with = [&ranks](auto holds) {
    std::vector<const RankView*> found;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(found), holds);
    return found;
  };
  if (auto own = with([](const RankView* v) { return IsOnItsOwn(v->report.place()); });
      !own.empty()) {
    return {std::move(own)};
  }
  const auto least = *std::min_element(ranks.begin(), ranks.end(), [](auto* a, auto* b) {
    return a->report.place().places() < b->report.place().places();
  });
  // Ranks in the earliest activity, which the others have left, wait for one another.
  std::vector<const RankView*> last = with([least](const RankView* v) {
    return v->report.place().places() == least->report.place().places();
  });
  if (least->report.place().activity() == v1::ACTIVITY_AGREEING) {
    // Nobody can leave it before all have come: what is missing did not come through.
    return {last.size() == 1 ? std::vector<const RankView*>(ranks.begin(), ranks.end()) : last,
            true};
  }
  if (least->report.place().groups().empty()) return {last};  // nobody knows where in the step
  const RankView* const end = EndOfWaiting(last.front(), last);
  const bool arrived =
      std::any_of(end->report.place().groups().begin(), end->report.place().groups().end(),
                  [](const v1::GroupPlace& group) { return group.arrived(); });
  if (!arrived) return {{end}};
  return {SameExchange(*end, last), true};
}

std::string PlaceText(const v1::RankPlace& place) {
  const std::string in_step = place.step() > 0 ? absl::StrCat(" of step ", place.step()) : "";
  std::string at = place.instruction();
  for (const v1::GroupPlace& group : place.groups()) {
    if (at.empty() && group.arrived()) at = group.instruction();
  }
  if (!at.empty())
    return absl::StrCat("instruction ", CleanLine(at, kPlaceBytesMax), in_step, " (",
                        CleanLine(place.sequence(), kPlaceBytesMax), ")");
  switch (place.activity()) {
    case v1::ACTIVITY_STEP:
      return absl::StrCat("step ", place.step());
    case v1::ACTIVITY_AGREEING:
      return absl::StrCat("the agreement of all ranks after step ", place.step());
    case v1::ACTIVITY_EVALUATING:
      return absl::StrCat("an evaluation after step ", place.step());
    case v1::ACTIVITY_CHECKPOINT:
      return absl::StrCat("a checkpoint, after step ", place.step());
    case v1::ACTIVITY_BETWEEN:
      return absl::StrCat("the end of step ", place.step());
    default:
      return "its preparation";
  }
}

std::string Ranks(std::string_view one, std::string_view several,
                  absl::Span<const RankView* const> ranks) {
  std::vector<uint32_t> numbers;
  for (const RankView* view : ranks) numbers.push_back(view->rank);
  const size_t told = std::min<size_t>(numbers.size(), kHangRanksTold);
  const std::string more =
      numbers.size() > told ? absl::StrCat(" and ", numbers.size() - told, " others") : "";
  numbers.resize(told);
  return absl::StrCat(Absl(numbers.size() == 1 ? one : several), " ", absl::StrJoin(numbers, ", "),
                      more);
}

// "rank 1 on node-2 (process 4711)".
std::string Name(const RankView& view) {
  return absl::StrCat(
      "rank ", view.rank, " on ", view.worker,
      view.report.pid() > 0 ? absl::StrCat(" (process ", view.report.pid(), ")") : "");
}

// The first of those that wait, where it stands.
std::string WaitingText(const v1::Hang& hang, absl::Span<const RankView* const> others) {
  if (others.empty()) return "";
  return absl::StrCat("; ", Ranks("rank", "ranks", others),
                      others.size() == 1 ? " waits for it at " : " wait for it, the first at ",
                      hang.waiting(0).place());
}

std::string ConnectionText(const v1::Hang& hang, absl::Span<const RankView* const> ranks) {
  std::set<std::string> workers;
  for (const RankView* view : ranks) workers.insert(view->worker);
  const std::string where = workers.size() > 1 ? absl::StrCat("look at the network between ",
                                                              absl::StrJoin(workers, ", "))
                                               : absl::StrCat("look at ", *workers.begin());
  const std::string first = absl::StrCat(Name(*ranks.front()), " stands at ", hang.place());
  if (ranks.size() == 1)
    return absl::StrCat("nothing comes through to ", first, ", which the others have left; ",
                        where);
  return absl::StrCat("nothing comes through between ", Ranks("rank", "ranks", ranks), ": ", first,
                      "; ", where);
}

std::string HangText(const v1::Hang& hang, absl::Span<const RankView* const> ranks,
                     absl::Span<const RankView* const> others) {
  if (hang.connection()) return ConnectionText(hang, ranks);
  const std::string words = hang.process_words();
  const std::string waiting = WaitingText(hang, others);
  const std::string more =
      ranks.size() > 1 ? absl::StrCat(Ranks("rank", "ranks", ranks), " do nothing any more; ") : "";
  if (hang.process() == v1::PROCESS_STOPPED) {
    return absl::StrCat(more, Name(*ranks.front()), " ", words, ", at ", hang.place(), waiting);
  }
  return absl::StrCat(more, Name(*ranks.front()),
                      ranks.size() > 1 ? "" : " does nothing any more: it", " stands at ",
                      hang.place(), words.empty() ? "" : absl::StrCat(" and ", words), waiting);
}

FoundHang Tell(const Culprits& culprits, absl::Span<const RankView* const> all, int64_t unix_ms) {
  const RankView& first = *culprits.ranks.front();
  const v1::RankPlace& place = first.report.place();
  FoundHang found{.standing_ms = place.standing_ms()};
  v1::Hang& hang = found.hang;
  for (const RankView* view : culprits.ranks) {
    found.standing_ms = std::min(found.standing_ms, view->report.place().standing_ms());
    if (hang.ranks_size() < kHangRanksTold) hang.add_ranks(view->rank);
  }
  hang.set_worker(first.worker);
  hang.set_pid(first.report.pid());
  hang.set_process(place.process());
  hang.set_process_words(CleanLine(place.process_words(), kPlaceBytesMax));
  hang.set_step(place.step());
  hang.set_place(PlaceText(place));
  hang.set_since_unix_ms(unix_ms - found.standing_ms);
  hang.set_connection(culprits.connection);
  std::vector<const RankView*> others;
  for (const RankView* view : all) {
    if (std::find(culprits.ranks.begin(), culprits.ranks.end(), view) != culprits.ranks.end())
      continue;
    others.push_back(view);
    if (hang.waiting_size() == kHangRanksTold) continue;
    v1::Hang::Waiting* waiting = hang.add_waiting();
    waiting->set_rank(view->rank);
    waiting->set_place(PlaceText(view->report.place()));
  }
  hang.set_message(HangText(hang, culprits.ranks, others));
  return found;
}

double Middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

int64_t StandingMs(double step_seconds, bool has_stepped) {
  const double steps_ms = std::min(kStandingSteps * 1000 * std::max(0.0, step_seconds), 1e15);
  return std::max(has_stepped ? kStandingMs : kFirstStandingMs, static_cast<int64_t>(steps_ms));
}

std::optional<FoundHang> FindHang(absl::Span<const RankView> ranks, int64_t standing_ms,
                                  int64_t unix_ms) {
  std::vector<const RankView*> live, stopped;
  bool all_stand = true;
  for (const RankView& view : ranks) {
    if (IsOver(view)) continue;
    live.push_back(&view);
    if (IsStopped(view)) stopped.push_back(&view);
    all_stand &= Stands(view, standing_ms);
  }
  if (!stopped.empty()) return Tell({std::move(stopped)}, live, unix_ms);
  if (live.empty() || !all_stand) return std::nullopt;
  return Tell(FindCulprits(live), live, unix_ms);
}

bool IsSameHang(const v1::Hang& a, const v1::Hang& b) {
  const auto stopped = [](const v1::Hang& hang) { return hang.process() == v1::PROCESS_STOPPED; };
  return std::equal(a.ranks().begin(), a.ranks().end(), b.ranks().begin(), b.ranks().end()) &&
         a.step() == b.step() && stopped(a) == stopped(b);
}

std::vector<v1::SlowRank> FindSlow(absl::Span<const RankView> ranks,
                                   absl::Span<const uint32_t> stages, int64_t unix_ms) {
  std::map<uint32_t, std::vector<const RankView*>> by_stage;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const v1::RankPlace& place = ranks[i].report.place();
    if (place.computing_ratio() <= 0) return {};  // not all are known yet
    by_stage[stages[i]].push_back(&ranks[i]);
  }
  std::vector<v1::SlowRank> slow;
  for (const auto& [stage, peers] : by_stage) {
    if (peers.size() < 2) continue;
    std::vector<double> all;
    for (const RankView* view : peers) all.push_back(view->report.place().computing_ratio());
    // Of most only one comparison is made.
    const double least = kSlowComputing * *std::min_element(all.begin(), all.end());
    for (const RankView* view : peers) {
      const double own = view->report.place().computing_ratio();
      if (own < kSlowComputingMin || own < least) continue;
      std::vector<double> computing, waiting;
      for (const RankView* other : peers) {
        if (other == view) continue;
        computing.push_back(other->report.place().computing_ratio());
        waiting.push_back(other->report.place().waiting_ratio());
      }
      const double others = Middle(std::move(computing)), wait = Middle(std::move(waiting));
      if (own < kSlowComputing * others || wait < kSlowWaitingMin) continue;
      v1::SlowRank& one = slow.emplace_back();
      one.set_rank(view->rank);
      one.set_worker(view->worker);
      one.set_computing_ratio(own);
      one.set_peers_computing_ratio(others);
      one.set_peers_waiting_ratio(wait);
      one.set_since_unix_ms(unix_ms);
    }
  }
  return slow;
}

std::string SlowText(const v1::SlowRank& slow) {
  return absl::StrFormat(
      "rank %d on %s is slow: it computes %.0f %% of the time, the others %.0f %%, and these wait "
      "%.0f %% of the time in exchanges",
      slow.rank(), slow.worker(), 100 * slow.computing_ratio(), 100 * slow.peers_computing_ratio(),
      100 * slow.peers_waiting_ratio());
}

std::string SlowIsOverText(const v1::SlowRank& slow) {
  return absl::StrCat("rank ", slow.rank(), " on ", slow.worker(),
                      " is as fast as the others again");
}

std::string HangLabel(const v1::Hang& hang) {
  if (hang.connection()) return "connection";
  switch (hang.process()) {
    case v1::PROCESS_STOPPED:
      return "stopped";
    case v1::PROCESS_PAGING:
      return "paging";
    case v1::PROCESS_IN_IO:
      return "in_io";
    case v1::PROCESS_IN_DRIVER:
      return "in_driver";
    case v1::PROCESS_RUNNING:
      return "running";
    case v1::PROCESS_WAITING:
      return "waiting";
    default:
      return "unknown";
  }
}

}  // namespace terrace
