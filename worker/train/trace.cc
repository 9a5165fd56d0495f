// SPDX-License-Identifier: Apache-2.0
#include "worker/train/trace.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

// Texts of instructions are ours, but a tensor's name may hold anything.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

std::string LowerName(const std::string& enum_name) { return absl::AsciiStrToLower(enum_name); }

// Where a copy's bytes go; nothing for other instructions.
std::string CopyArguments(const PreparedInstruction& instruction) {
  const auto ends = [&]() -> std::pair<v1::Tier, v1::Tier> {
    switch (instruction.source->copy().kind()) {
      case v1::TO_DEVICE:
        return {v1::HOST, v1::DEVICE};
      case v1::TO_HOST:
        return {v1::DEVICE, v1::HOST};
      case v1::NVME_LOAD:
        return {v1::NVME, v1::HOST};
      case v1::NVME_STORE:
        return {v1::HOST, v1::NVME};
      default:
        return {};
    }
  };
  if (!instruction.source->has_copy()) return "";
  const auto [from, to] = ends();
  return absl::StrFormat(R"(,"from":"%s","to":"%s","bytes":%d)", LowerName(v1::Tier_Name(from)),
                         LowerName(v1::Tier_Name(to)), instruction.copied_bytes);
}

std::string StreamName(const v1::Stream& stream) {
  return stream.name().empty() ? LowerName(v1::StreamKind_Name(stream.kind())) : stream.name();
}

// By loop: the instructions of its body on all streams.
std::map<int, int64_t> BodiesOf(const PreparedSequence& sequence) {
  std::map<int, int64_t> bodies;
  for (const PreparedStream& stream : sequence.streams) {
    for (const RecordedLoop& loop : stream.loops) bodies[loop.loop] += loop.count;
  }
  return bodies;
}

}  // namespace

Trace::Trace(const v1::Program& program, uint32_t rank) : rank_(rank) {
  events_ = absl::StrFormat(
      R"({"ph":"M","pid":%u,"name":"process_name","args":{"name":"rank %u"}})", rank, rank);
  for (int i = 0; i < program.streams_size(); ++i) {
    absl::StrAppendFormat(&events_,
                          ",\n"
                          R"({"ph":"M","pid":%u,"tid":%d,"name":"thread_name","args":{"name":%s}})",
                          rank, i, Quoted(StreamName(program.streams(i))));
  }
}

void Trace::AddSlice(const PreparedStream& stream, size_t index, const PlayedCursor& at,
                     int64_t step) {
  const PreparedInstruction& instruction = stream.instructions[at.index()];
  const v1::Instruction& source = *instruction.source;
  const Slice& slice = stream.slices[at.slice()];
  if (origin_ns_ == 0) origin_ns_ = slice.start_ns;
  const int64_t micro_batch =
      source.micro_batch() + int64_t{at.iteration()} * instruction.micro_batch_step;
  absl::StrAppendFormat(
      &events_,
      ",\n"
      R"({"ph":"X","pid":%u,"tid":%d,"name":%s,"cat":"%s","ts":%.3f,"dur":%.3f,)"
      R"("args":{"id":%u,"step":%d,"layer":%d,"micro_batch":%d%s%s}})",
      rank_, index, Quoted(source.text()), LowerName(v1::Phase_Name(source.phase())),
      (slice.start_ns - origin_ns_) * 1e-3, (slice.end_ns - slice.start_ns) * 1e-3, source.id(),
      step, source.layer(), micro_batch,
      at.loop() == nullptr ? "" : absl::StrCat(",\"iteration\":", at.iteration()),
      CopyArguments(instruction));
}

void Trace::AddLeftOut(const PreparedStream& stream, size_t index, const PlayedCursor& at,
                       const Shown& shown) {
  const RecordedLoop& loop = *at.loop();
  const int64_t last = loop.begin + shown.head * loop.count - 1;
  const int64_t start_ns = stream.slices[SliceAt(stream.loops, last)].end_ns;
  absl::StrAppendFormat(&events_,
                        ",\n"
                        R"({"ph":"X","pid":%u,"tid":%d,"name":"iterations %d to %d, left out",)"
                        R"("ts":%.3f,"dur":%.3f})",
                        rank_, index, shown.head, loop.trips - shown.tail - 1,
                        (start_ns - origin_ns_) * 1e-3,
                        (stream.slices[at.slice()].start_ns - start_ns) * 1e-3);
}

bool Trace::Add(const PreparedSequence& sequence, int64_t step) {
  const size_t before = events_.size();
  const std::map<int, int64_t> bodies = BodiesOf(sequence);
  for (size_t s = 0; s < sequence.streams.size(); ++s) {
    const PreparedStream& stream = sequence.streams[s];
    for (PlayedCursor at = stream.cursor(); !at.AtEnd(); at.AdvanceRecorded()) {
      if (const RecordedLoop* loop = at.loop(); loop != nullptr) {
        const int64_t room = std::max<int64_t>(
            2, kTracedInLoopsMax / (static_cast<int64_t>(bodies.size()) * bodies.at(loop->loop)));
        const Shown shown{.head = std::min(loop->head, (room + 1) / 2),
                          .tail = std::min(loop->tail, room / 2)};
        const int64_t back = loop->trips - shown.tail;
        if (at.iteration() >= shown.head && at.iteration() < back) continue;
        const bool returns = at.iteration() == back && shown.head < back &&
                             at.index() == static_cast<size_t>(loop->first);
        if (returns) AddLeftOut(stream, s, at, shown);
      }
      AddSlice(stream, s, at, step);
    }
  }
  if (events_.size() <= kTraceBytesMax) {
    ++steps_;
    return true;
  }
  events_.resize(before);
  return false;
}

absl::Status Trace::Write(std::string_view path) const {
  if (steps_ == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no trace is written: one step has more than the ", kTraceBytesMax >> 20,
                     " MiB of a trace; trace a layout of fewer micro-batches"));
  }
  const std::string part = absl::StrCat(Absl(path), ".part");
  RETURN_IF_ERROR(WriteSyncedFile(
      part, absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", events_, "\n]}\n")));
  std::error_code error;
  std::filesystem::rename(part, std::string(path), error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write the trace ", Absl(path), ": ", error.message()));
}

}  // namespace terrace
