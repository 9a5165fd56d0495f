// SPDX-License-Identifier: Apache-2.0
#include "tests/system/turns.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/system/meeting.h"

namespace terrace {
namespace {

// Instructions that a stream executes at most before others have a turn: long enough that what it
// works on is in the cache, short enough that all orders occur.
constexpr uint32_t kMostAtOnce = 12;

// One stream of one rank.
struct Stream {
  const TurnRank* rank = nullptr;
  PreparedStream* prepared = nullptr;
  const Stream* siblings = nullptr;  // the streams of the rank
  PlayedCursor at;
  bool called = false;  // the present instruction is with its group ...
  bool done = false;    // ... which has served it

  bool ended() const { return at.AtEnd(); }
  PreparedInstruction& present() const { return prepared->instructions[at.index()]; }

  bool CanStart() const {
    return std::all_of(present().waits.begin(), present().waits.end(),
                       [this](const WaitPoint& point) {
                         return siblings[point.stream].at.position() >= point.At(at.iteration());
                       });
  }

  // False when it has to wait. REQUIRES: not ended.
  absl::StatusOr<bool> Step() {
    if (!called) {
      if (!CanStart()) return false;
      PreparedInstruction& instruction = present();
      if (at.loop() != nullptr) instruction.MoveTo(at.iteration());
      if (instruction.writes_state && rank->fence != nullptr) rank->fence->WaitUntilUnread();
      done = true;
      if (instruction.group != nullptr) static_cast<Member*>(instruction.group)->ReportTo(&done);
      RETURN_IF_ERROR(instruction.run(instruction, rank->io));
      called = true;
      if (!done) return true;
    }
    if (!done) return false;
    called = false;
    at.Advance();
    return true;
  }
};

absl::Status Stuck(const std::vector<TurnRank>& ranks, const std::vector<Stream>& streams) {
  std::string text = "nobody can go on:";
  for (const Stream& stream : streams) {
    if (stream.ended()) continue;
    absl::StrAppend(&text, " rank ", stream.rank - ranks.data(), " is ",
                    stream.called ? "in " : "before ", stream.present().source->text(), ";");
  }
  return absl::AbortedError(text);
}

}  // namespace

absl::Status RunInTurns(const std::vector<TurnRank>& ranks, std::mt19937* random) {
  size_t count = 0;
  std::vector<PreparedSequence> own;  // instructions of loops move on
  for (const TurnRank& rank : ranks) {
    own.push_back(*rank.sequence);
    count += rank.sequence->streams.size();
  }
  std::vector<Stream> streams;
  streams.reserve(count);  // they point at each other
  for (const TurnRank& rank : ranks) {
    const Stream* first = streams.data() + streams.size();
    for (PreparedStream& prepared : own[&rank - ranks.data()].streams) {
      streams.push_back(
          {.rank = &rank, .prepared = &prepared, .siblings = first, .at = prepared.cursor()});
    }
  }
  std::vector<Stream*> going;
  for (Stream& stream : streams) going.push_back(&stream);
  while (!going.empty()) {
    const auto drawn = static_cast<uint32_t>((*random)());
    const size_t start = (drawn & 0xffff) % going.size();
    bool moved = false;
    for (size_t i = 0; i < going.size() && !moved; ++i) {
      Stream*& stream = going[(start + i) % going.size()];
      for (uint32_t left = (drawn >> 16) % kMostAtOnce + 1; left > 0 && !stream->ended(); --left) {
        ASSIGN_OR_RETURN(const bool stepped, stream->Step());
        if (!stepped) break;
        moved = true;
      }
      if (!stream->ended()) continue;
      stream = going.back();
      going.pop_back();
      moved = true;
    }
    if (!moved) return Stuck(ranks, streams);
  }
  return absl::OkStatus();
}

}  // namespace terrace
