// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/timeline_chart.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "coordinator/report/stages.h"
#include "proto/report/live_memory.h"

namespace terrace {
namespace {

constexpr size_t kStagesMost = 32;
constexpr size_t kPiecesMost = 12000;  // of a picture; keeps the page below 2 MB
constexpr double kLeft = 150, kPlotWidth = kPictureWidth - kLeft;
constexpr double kTitleWidth = 4;  // narrower pieces say nothing under the pointer

enum Lane { kCompute, kCommunicate, kCopy, kHostCompute, kLanes };
constexpr std::array<const char*, kLanes> kLaneNames = {"compute", "communication", "copies",
                                                        "host optimizer"};

struct Piece {
  double start = 0, end = 0;
  v1::Phase phase = v1::PHASE_UNSPECIFIED;
  int micro_batch = -1;  // of all of it
  int instructions = 1;
};
struct Row {
  std::string name;
  std::array<std::vector<Piece>, kLanes> lanes;
};

Lane LaneOf(const v1::Program& program, const v1::Instruction& instruction) {
  if (instruction.has_collective() || instruction.has_transfer()) return kCommunicate;
  const bool host =
      program.streams(static_cast<int>(instruction.stream())).kind() == v1::HOST_COMPUTE;
  if (instruction.has_compute()) return host ? kHostCompute : kCompute;
  return kCopy;
}

// By start; pieces of one lane may overlap where it has several streams.
std::vector<Piece> Merge(const std::vector<Piece>& pieces, double resolution) {
  std::vector<Piece> merged;
  for (const Piece& piece : pieces) {
    if (!merged.empty() && piece.start - merged.back().end <= resolution) {
      Piece& last = merged.back();
      const double seconds = last.end - last.start;
      const bool same = piece.phase == last.phase && piece.micro_batch == last.micro_batch;
      if (same || seconds < resolution || piece.end - last.start < resolution) {
        if (!same) last.micro_batch = -1;
        if (piece.end - piece.start > seconds) last.phase = piece.phase;
        last.end = std::max(last.end, piece.end);
        last.instructions += piece.instructions;
        continue;
      }
    }
    merged.push_back(piece);
  }
  return merged;
}

void SortLanes(Row* row) {
  for (std::vector<Piece>& lane : row->lanes) {
    std::stable_sort(lane.begin(), lane.end(),
                     [](const Piece& a, const Piece& b) { return a.start < b.start; });
  }
}

Row ReadRow(const Prepared& prepared, int stage) {
  Row row{.name = absl::StrCat("stage ", prepared.programs[stage].stage()), .lanes = {}};
  const PlayedProgram drawn = DrawnOf(prepared, stage);
  const v1::Program& program = drawn.program();
  const v1::Sequence& sequence = TrainOf(program);
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    const RunInstruction& run = prepared.simulation.stages[stage].instructions[i];
    const v1::Instruction& instruction = sequence.instructions(i);
    if (!run.ran() || run.end_seconds <= run.start_seconds || instruction.has_output()) continue;
    row.lanes[LaneOf(program, instruction)].push_back(
        {run.start_seconds, run.end_seconds, instruction.phase(), instruction.micro_batch()});
  }
  SortLanes(&row);
  return row;
}

Row ReadRow(const Prepared& prepared, const MeasuredStep& measured) {
  Row row{.name = absl::StrCat("rank ", measured.rank), .lanes = {}};
  const v1::Program& program = prepared.programs[measured.stage];
  for (const MeasuredInstruction& one : measured.instructions) {
    if (one.end_seconds <= one.start_seconds || one.instruction->has_output()) continue;
    row.lanes[LaneOf(program, *one.instruction)].push_back(
        {one.start_seconds, one.end_seconds, one.instruction->phase(), one.micro_batch});
  }
  SortLanes(&row);
  return row;
}

// Makes rows coarser until there are few pieces; pauses and pieces below what it returns, in
// seconds, are not drawn.
double MergeRows(double seconds, std::vector<Row>* rows) {
  double resolution = seconds / kPlotWidth / 4;
  while (true) {
    size_t pieces = 0;
    for (Row& row : *rows) {
      for (std::vector<Piece>& lane : row.lanes) {
        lane = Merge(lane, resolution);
        pieces += lane.size();
      }
    }
    if (pieces <= kPiecesMost) return resolution;
    resolution *= 2;
  }
}

std::string Words(const Piece& piece) {
  std::string words = StyleOf(piece.phase).name;
  if (piece.micro_batch >= 0) absl::StrAppend(&words, ", micro-batch ", piece.micro_batch);
  return absl::StrCat(words, ", ", SecondsText(piece.end - piece.start), " from ",
                      SecondsText(piece.start), ", ", piece.instructions,
                      piece.instructions == 1 ? " instruction" : " instructions");
}

std::string LanePieces(const std::vector<Piece>& pieces, double y, double height, double seconds) {
  std::map<const char*, std::string> small;  // one path a colour
  std::string large, numbers;
  for (const Piece& piece : pieces) {
    const double x = kLeft + kPlotWidth * piece.start / seconds;
    const double width = kPlotWidth * (piece.end - piece.start) / seconds;
    const char* colour = StyleOf(piece.phase).colour;
    if (width < kTitleWidth) {
      absl::StrAppendFormat(&small[colour], "M%.1f %.1fh%.2fv%.1fh-%.2fz", x, y,
                            std::max(width, 0.2), height, std::max(width, 0.2));
      continue;
    }
    const double edge = width > 8 ? 0.6 : 0;  // neighbours are told apart
    large +=
        RectAt(x, y, width - edge, height, absl::StrCat("fill=\"", colour, "\""), Words(piece));
    const std::string number = absl::StrCat(piece.micro_batch);
    if (piece.micro_batch >= 0 && height >= 12 && width > 1 + TextWidth(number)) {
      numbers += TextAt(x + width / 2, y + height / 2 + 3.5, Anchor::kMiddle, number, "small");
    }
  }
  std::string svg;
  for (const auto& [colour, path] : small) {
    absl::StrAppend(&svg, "<path fill=\"", colour, "\" d=\"", path, "\"/>\n");
  }
  return svg + large + numbers;
}

// `rows` over `seconds`; `words` stand below them.
Picture Draw(std::vector<Row> rows, double seconds, std::string words) {
  seconds = std::max(seconds, 1e-12);
  const double merged_seconds = MergeRows(seconds, &rows);
  const bool dense = rows.size() > 8;
  const std::array<double, kLanes> heights = {dense ? 12.0 : 20.0, dense ? 5.0 : 13.0,
                                              dense ? 4.0 : 13.0, dense ? 4.0 : 13.0};
  std::vector<Swatch> swatches;
  for (const PhaseStyle& style : PhaseStyles()) swatches.push_back({style.name, style.colour});
  Picture picture = Legend(swatches);
  double y = picture.height + 6;
  if (dense) {
    picture.body += TextAt(0, y + 10, Anchor::kStart,
                           "from top to bottom of a stage: compute, communication, copies, host");
    y += 20;
  }
  for (const Row& row : rows) {
    picture.body += TextAt(0, y + heights[0] / 2 + 4, Anchor::kStart, row.name, "head");
    for (int lane = 0; lane < kLanes; ++lane) {
      if (row.lanes[lane].empty()) continue;
      if (!dense) {
        picture.body +=
            TextAt(kLeft - 8, y + heights[lane] / 2 + 4, Anchor::kEnd, kLaneNames[lane]);
      }
      picture.body += RectAt(kLeft, y, kPlotWidth, heights[lane], "fill=\"#f3f5f6\"");
      picture.body += LanePieces(row.lanes[lane], y, heights[lane], seconds);
      y += heights[lane] + (dense ? 0.5 : 2);
    }
    y += dense ? 3 : 8;
  }
  picture.body += TimeAxis(kLeft, kPictureWidth, y, seconds, 10);
  absl::StrAppend(&words, "Pieces shorter than ", SecondsText(merged_seconds),
                  " are drawn with their neighbours.");
  picture.body += TextAt(0, y + 34, Anchor::kStart, words);
  picture.height = y + 40;
  return picture;
}

}  // namespace

Picture TimelineChart(const Prepared& prepared, double seconds_shown) {
  std::vector<Row> rows;
  const int stages = static_cast<int>(prepared.programs.size());
  for (const int stage : EvenlyChosen(stages, kStagesMost)) {
    rows.push_back(ReadRow(prepared, stage));
  }
  std::string words;
  if (rows.size() < prepared.programs.size()) {
    words = absl::StrCat(rows.size(), " of ", prepared.programs.size(), " stages are drawn. ");
  }
  return Draw(std::move(rows), std::max(seconds_shown, prepared.simulation.played_seconds), words);
}

Picture MeasuredTimelineChart(const Prepared& prepared, const MeasuredStep& measured,
                              double seconds_shown) {
  return Draw({ReadRow(prepared, measured)}, std::max(seconds_shown, measured.seconds), "");
}

std::vector<BusyTime> BusyTimes(const Prepared& prepared, const MeasuredStep& measured) {
  const Row rows[] = {ReadRow(prepared, measured.stage), ReadRow(prepared, measured)};
  std::vector<BusyTime> times;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (const PhaseStyle& style : PhaseStyles()) {
      double seconds[2] = {0, 0};
      for (int of = 0; of < 2; ++of) {
        for (const Piece& piece : rows[of].lanes[lane]) {
          if (&StyleOf(piece.phase) == &StyleOf(style.phase)) {
            seconds[of] += piece.end - piece.start;
          }
        }
      }
      if (seconds[0] > 0 || seconds[1] > 0) {
        times.push_back({absl::StrCat(kLaneNames[lane], ", ", style.name), seconds[0], seconds[1]});
      }
    }
  }
  return times;
}

}  // namespace terrace
