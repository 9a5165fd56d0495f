// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/html.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/number_format.h"
#include "coordinator/report/alternatives_chart.h"
#include "coordinator/report/breakdown.h"
#include "coordinator/report/layers_section.h"
#include "coordinator/report/measured_step.h"
#include "coordinator/report/memory_chart.h"
#include "coordinator/report/picture.h"
#include "coordinator/report/stages.h"
#include "coordinator/report/timeline_chart.h"
#include "proto/drawing/html_table.h"
#include "proto/drawing/page.h"
#include "proto/drawing/svg.h"
#include "proto/report/layout_text.h"
#include "proto/report/plan_text.h"

namespace terrace {
namespace {

std::string Tile(const char* name, const std::string& value, const std::string& words) {
  return absl::StrCat("<div><dt>", name, "</dt><dd>", EscapeXml(value), "<small>", EscapeXml(words),
                      "</small></dd></div>\n");
}

std::string Tiles(const v1::Plan& plan) {
  const v1::TimeEstimate& time = plan.time();
  const Candidate chosen = CandidatesOf(plan).front();
  const int64_t limit = DeviceLimit(plan);
  std::string tiles = "<dl class=\"tiles\">\n";
  tiles += Tile("step", SecondsText(time.step_seconds()),
                absl::StrCat("whole job ", SecondsText(time.total_seconds())));
  tiles +=
      Tile("tokens a second", Grouped(std::llround(time.tokens_per_second())),
           absl::StrCat(Grouped(std::llround(time.tokens_per_second_per_device())), " a device"));
  tiles += Tile("model FLOPs used", PercentText(time.mfu()),
                absl::StrFormat("%.4g TFLOP/s a device", time.tflops_per_device()));
  tiles += Tile("device memory", FormatBytes(chosen.device_bytes),
                limit > 0 ? absl::StrCat("of ", FormatBytes(limit)) : "no limit given");
  if (chosen.host_bytes > 0) {
    tiles += Tile("host memory", FormatBytes(chosen.host_bytes), "of a rank");
  }
  if (plan.has_nvme()) {
    tiles += Tile("written to NVMe",
                  absl::StrFormat("%.3g TB a day", plan.nvme().write_bytes_per_day() * 1e-12),
                  absl::StrCat(FormatBytes(plan.nvme().write_bytes_per_step()), " a step"));
  }
  return tiles + "</dl>\n";
}

std::string LayoutSection(const Prepared& prepared) {
  const v1::Plan& plan = prepared.plan;
  const v1::Layout& layout = plan.layout();
  HtmlTable table("keys", {false, false});
  table.Add({"layout", EscapeXml(LayoutText(layout))});
  table.Add({"where",
             absl::StrCat(Grouped(layout.ranks()), layout.ranks() == 1 ? " rank on " : " ranks on ",
                          Grouped(layout.nodes()), layout.nodes() == 1 ? " node" : " nodes")});
  const int64_t tokens = int64_t{layout.micro_batch()} * layout.micro_batches() *
                         layout.data_parallel() * plan.model().sequence_length();
  table.Add(
      {"batch", absl::StrCat(layout.micro_batches(), " micro-batches of ", layout.micro_batch(),
                             " x ", Grouped(plan.model().sequence_length()), " tokens a rank, ",
                             Grouped(tokens), " tokens a step")});
  table.Add({"precision", EscapeXml(PrecisionText(layout))});
  std::string rests;
  const auto rest = [&rests](const char* name, const v1::TierShares& shares) {
    if (shares.host() == 0 && shares.nvme() == 0) return;
    absl::StrAppend(&rests, rests.empty() ? "" : ", ", name, " on ", TierSharesText(shares));
  };
  rest("parameters", layout.offload().parameter());
  rest("gradients", layout.offload().gradient());
  rest("optimizer", layout.offload().optimizer());
  rest("activations", layout.offload().activation());
  table.Add({"offload", rests.empty() ? "none" : rests});
  const v1::HardwareProfile& profile = plan.profile();
  table.Add({"hardware", EscapeXml(absl::StrCat(
                             profile.name(), profile.measured() ? " (measured)" : " (catalogue)",
                             profile.doubt().empty() ? "" : ", in doubt: ", profile.doubt()))});
  table.Add({"search", absl::StrCat(Grouped(plan.search().candidates()), " layouts compared, ",
                                    Grouped(plan.search().compiled()), " compiled and simulated")});
  std::string binding;
  if (plan.has_binding() && plan.binding().bytes() > 0) {
    const v1::Binding& bound = plan.binding();
    binding = absl::StrCat(
        "stage ", bound.stage(), ", ", TierWord(bound.tier()), ": ", FormatBytes(bound.bytes()),
        bound.limit_bytes() > 0 ? absl::StrCat(" of ", FormatBytes(bound.limit_bytes())) : "",
        "; the peak is at <code>", EscapeXml(bound.instruction()), "</code>");
    table.Add({"nearest to its limit", binding});
  }
  std::string remarks;
  for (const std::string& remark : plan.remarks())
    absl::StrAppend(&remarks, "<p>Note: ", EscapeXml(remark), "</p>\n");
  return absl::StrCat("<h2>The layout, and why</h2>\n<p class=\"why",
                      prepared.refusal.ok() ? "" : " refused", "\">",
                      EscapeXml(plan.binding_constraint()), "</p>\n", remarks, table.Finish());
}

std::string LargestSection(const v1::Binding& binding) {
  if (binding.largest().empty()) return "";
  HtmlTable table("", {true, true, false, false, false});
  table.Head({"bytes", "of it", "buffer", "class", "made by"});
  for (const v1::Binding::Holder& holder : binding.largest()) {
    table.Add({FormatBytes(holder.bytes()),
               PercentText(static_cast<double>(holder.bytes()) /
                           static_cast<double>(std::max<int64_t>(1, binding.bytes()))),
               Code(holder.name()), ClassWord(holder.class_()),
               holder.made_by().empty() ? "there all the time" : Code(holder.made_by())});
  }
  return absl::StrCat("<p>The largest buffers at the peak of stage ", binding.stage(), ", ",
                      TierWord(binding.tier()), ":</p>\n", Wide(table.Finish()));
}

// Of pictures that show few iterations of a loop.
std::string LeftOutWords(const Prepared& prepared) {
  if (prepared.simulation.left_out == 0) return "";
  return absl::StrCat(" ", LeftOutText(prepared), "; they are like the last of those shown.");
}

std::string MemorySection(const Prepared& prepared) {
  std::string section =
      "<section><h2>Memory over the step</h2>\n<p>What holds something on each tier of a rank, by "
      "class, over the simulated time. Dotted: what is reserved. Dashed: the budget. Point at a "
      "chart for numbers." +
      LeftOutWords(prepared) + "</p>\n";
  for (const Picture& row : MemoryCharts(prepared)) {
    section += Wide(SvgElement(row, "Memory over the step by class"));
  }
  return section + "</section>\n";
}

// The schedule, and below it that of a rank as it was measured.
std::string ScheduleSection(const Prepared& prepared, const std::string& trace) {
  const auto measured = ReadMeasuredStep(trace, prepared);
  const bool is_whole = prepared.simulation.left_out == 0;
  const double seconds = measured.ok() && is_whole ? measured->seconds : 0;
  std::string section = absl::StrCat(
      "<section><h2>The schedule</h2>\n<p>Each stage over the simulated step, coloured by "
      "phase; numbers are micro-batches. Empty: it waits.",
      LeftOutWords(prepared), "</p>\n",
      Wide(SvgElement(TimelineChart(prepared, seconds), "Schedule of the stages over the step")));
  if (!measured.ok()) return section + "</section>\n";
  absl::StrAppend(
      &section, "<h3>As it was measured</h3>\n<p>Step ", measured->step + 1, " of rank ",
      measured->rank, ": <b>", SecondsText(measured->seconds), "</b>.</p>\n",
      Wide(SvgElement(MeasuredTimelineChart(prepared, *measured,
                                            is_whole ? prepared.simulation.played_seconds : 0),
                      "Measured schedule of a rank over a step")));
  if (is_whole) {
    HtmlTable table("", {false, true, true, true});
    table.Head({"busy", "simulated", "measured", "difference"});
    for (const BusyTime& busy : BusyTimes(prepared, *measured)) {
      const bool both = busy.simulated_seconds > 0 && busy.measured_seconds > 0;
      table.Add({busy.name, SecondsText(busy.simulated_seconds), SecondsText(busy.measured_seconds),
                 both ? absl::StrFormat("%+.0f %%",
                                        100 * (busy.measured_seconds / busy.simulated_seconds - 1))
                      : ""});
    }
    section += Wide(table.Finish());
  }
  return section + "</section>\n";
}

std::string TimeSection(const Prepared& prepared, const std::string& trace) {
  const std::vector<StageTime> stages = BreakDown(prepared);
  std::vector<std::string> head = {"stage"};
  for (const TimePart& part : stages.at(0).parts) head.push_back(part.name);
  HtmlTable table("", std::vector<bool>(head.size(), true));
  table.Head(head);
  for (const StageTime& stage : stages) {
    std::vector<std::string> cells = {absl::StrCat(stage.stage)};
    for (const TimePart& part : stage.parts) cells.push_back(SecondsText(part.seconds));
    table.Add(cells);
  }
  std::string expected = EscapeXml(UncertaintyText(prepared.plan));
  if (!expected.empty()) expected = absl::StrCat("<p>How sure this is: ", expected, ".</p>\n");
  return absl::StrCat(ScheduleSection(prepared, trace),
                      "<section><h2>Where the time goes</h2>\n<p>Bubble of all stages over their "
                      "computation: <b>",
                      PercentText(prepared.plan.time().bubble_ratio()),
                      "</b>; communication that nothing hides: <b>",
                      SecondsText(prepared.plan.time().exposed_communication_seconds()),
                      "</b>; offload that nothing hides: <b>",
                      SecondsText(prepared.plan.time().exposed_offload_seconds()), "</b>.</p>\n",
                      expected,
                      Wide(SvgElement(BreakdownChart(prepared), "Parts of the step of each stage")),
                      Wide(table.Finish()), "</section>\n");
}

std::string MemoryTable(const v1::Plan& plan) {
  std::vector<v1::BufferClass> classes;
  for (const ClassStyle& style : ClassStyles()) {
    for (const v1::StageMemory& memory : plan.memory()) {
      if (std::any_of(memory.lines().begin(), memory.lines().end(), [&](const auto& line) {
            return line.class_() == style.buffer_class && line.bytes() > 0;
          })) {
        classes.push_back(style.buffer_class);
        break;
      }
    }
  }
  std::vector<std::string> head = {"stage", "tier"};
  for (const v1::BufferClass one : classes) head.push_back(ClassWord(one));
  head.insert(head.end(), {"gaps", "total", "limit", "over the bound"});
  const bool paged = std::any_of(plan.memory().begin(), plan.memory().end(),
                                 [](const auto& memory) { return memory.paged_bytes() > 0; });
  if (paged) head.push_back("pages at second addresses");
  std::vector<bool> numeric(head.size(), true);
  numeric[1] = false;
  HtmlTable table("", numeric);
  table.Head(head);
  for (const v1::StageMemory& memory : plan.memory()) {
    std::vector<std::string> cells = {absl::StrCat(memory.stage()), TierWord(memory.tier())};
    classes.push_back(v1::BUFFER_CLASS_UNSPECIFIED);
    for (const v1::BufferClass one : classes) {
      int64_t bytes = 0;
      for (const v1::MemoryLine& line : memory.lines()) {
        if (line.class_() == one) bytes += line.bytes();
      }
      cells.push_back(bytes == 0 ? "" : FormatBytes(bytes));
    }
    classes.pop_back();
    cells.push_back(FormatBytes(memory.arena_bytes() + memory.external_bytes()));
    cells.push_back(memory.limit_bytes() > 0 ? FormatBytes(memory.limit_bytes()) : "none");
    cells.push_back(
        memory.lower_bound_bytes() > 0
            ? absl::StrFormat("%.2f %%", 100.0 * (static_cast<double>(memory.arena_bytes()) /
                                                      memory.lower_bound_bytes() -
                                                  1))
            : "");
    if (paged) cells.push_back(memory.paged_bytes() > 0 ? FormatBytes(memory.paged_bytes()) : "");
    table.Add(cells);
  }
  const char* words =
      "These are the bytes that a rank reserves, exactly; the bound is what no packing can go "
      "below.";
  return absl::StrCat("<section><h2>Memory of a rank at the peak</h2>\n<p>", words, "</p>\n",
                      Wide(table.Finish()), LargestSection(plan.binding()), "</section>\n");
}

std::string AlternativesSection(const v1::Plan& plan) {
  const std::vector<Candidate> candidates = CandidatesOf(plan);
  if (candidates.size() < 2) return "";
  HtmlTable table("", {true, true, true, true, true, false});
  table.Head({"", "step", "device", "host", "NVMe",
              plan.fits() ? "what differs, and why it is not chosen" : "what differs, and how"});
  const auto bytes = [](int64_t value) { return value == 0 ? "" : FormatBytes(value); };
  for (const Candidate& one : candidates) {
    const std::string layout = one.number == 0 ? "the layout above" : one.layout;
    table.Add({one.number == 0 ? "" : absl::StrCat(one.number), SecondsText(one.step_seconds),
               bytes(one.device_bytes), bytes(one.host_bytes), bytes(one.nvme_bytes),
               absl::StrCat("<b>", EscapeXml(layout), "</b><br/>", EscapeXml(one.note))});
  }
  return absl::StrCat("<section><h2>", plan.fits() ? "Alternatives" : "What would fit",
                      "</h2>\n<p>Black: the chosen one. Blue: nothing that fits is both faster "
                      "and smaller. Crosses do not fit.</p>\n",
                      Wide(SvgElement(AlternativesChart(candidates, DeviceLimit(plan)),
                                      "Device memory against the time of a step")),
                      Wide(table.Finish()), "</section>\n");
}

std::string ProgramWords(const v1::Plan& plan) {
  const auto brief = [](std::string* out, const std::string& hash) {
    absl::StrAppend(out, hash.substr(0, 16));
  };
  return absl::StrCat("Programs <code>", absl::StrJoin(plan.program_sha256(), " ", brief),
                      "</code>, ", Grouped(plan.instructions()), " instructions of a step; ");
}

}  // namespace

std::string PlanHtml(const Prepared& prepared) { return PlanHtml(prepared, {}); }

std::string PlanHtml(const Prepared& prepared, const Measured& measured) {
  const v1::Plan& plan = prepared.plan;
  return absl::StrCat(
      PageStart(absl::StrCat("Plan of ", plan.job())), "<h1>Plan of ", EscapeXml(plan.job()),
      prepared.refusal.ok() ? "" : ": does not fit", "</h1>\n<p>", EscapeXml(PlanWords(plan)),
      "</p>\n", Tiles(plan), LayoutSection(prepared), MemorySection(prepared),
      TimeSection(prepared, measured.trace), MemoryTable(plan),
      LayersSection(prepared, measured.rank), AlternativesSection(plan), "<p>", ProgramWords(plan),
      "a checkpoint is ", FormatBytes(plan.checkpoint_bytes()), ".</p>\n", PageEnd());
}

}  // namespace terrace
