// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/trace.h"

#include <filesystem>
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

bool Trace::Add(const PreparedSequence& sequence, int64_t step) {
  const size_t before = events_.size();
  for (size_t s = 0; s < sequence.streams.size(); ++s) {
    const PreparedStream& stream = sequence.streams[s];
    for (size_t i = 0; i < stream.instructions.size(); ++i) {
      const v1::Instruction& source = *stream.instructions[i].source;
      const Slice& slice = stream.slices[i];
      if (origin_ns_ == 0) origin_ns_ = slice.start_ns;
      absl::StrAppendFormat(
          &events_,
          ",\n"
          R"({"ph":"X","pid":%u,"tid":%d,"name":%s,"cat":"%s","ts":%.3f,"dur":%.3f,)"
          R"("args":{"id":%u,"step":%d,"layer":%d,"micro_batch":%d%s}})",
          rank_, s, Quoted(source.text()), LowerName(v1::Phase_Name(source.phase())),
          (slice.start_ns - origin_ns_) * 1e-3, (slice.end_ns - slice.start_ns) * 1e-3, source.id(),
          step, source.layer(), source.micro_batch(), CopyArguments(stream.instructions[i]));
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
