// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/text/number_format.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/report/breakdown.h"
#include "coordinator/report/html.h"
#include "coordinator/report/measured_step.h"
#include "coordinator/report/memory_over_time.h"
#include "coordinator/report/picture.h"
#include "coordinator/report/stages.h"
#include "coordinator/report/timeline_chart.h"
#include "coordinator/report/trace.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

// Two stages, activations on the host, a budget.
const Prepared& Job() {
  static const auto* job = [] {
    v1::JobSpec spec = TinySpec();
    spec.set_name("a<b> & \"c\"");
    spec.mutable_model()->set_config_json(TinyConfig("gpt2"));
    spec.mutable_model()->set_attention("config");
    spec.mutable_train()->set_precision("fp32");
    spec.mutable_train()->set_global_batch(8);
    v1::LayoutSpec* layout = spec.mutable_layout();
    layout->set_pp(2);
    layout->set_micro_batch(2);
    layout->set_recompute("none");
    PutOn(v1::HOST, layout->mutable_offload()->mutable_optimizer());
    auto prepared = Prepare(spec, {.ranks = 2,
                                   .threads_per_rank = 2,
                                   .device_memory_bytes = int64_t{1} << 28,
                                   .profile = CpuProfile(2)});
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return new Prepared(prepared.ok() ? *std::move(prepared) : Prepared());
  }();
  return *job;
}

TEST(PlanHtmlTest, HasEveryStageTierClassAndTheBudget) {
  const std::string page = PlanHtml(Job());
  ASSERT_EQ(Job().programs.size(), 2u);
  for (const v1::StageMemory& memory : Job().plan.memory()) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("stage ", memory.stage(), ", ",
                                             memory.tier() == v1::HOST ? "host" : "device")));
    EXPECT_THAT(page, HasSubstr(FormatBytes(memory.arena_bytes() + memory.external_bytes())));
    for (const v1::MemoryLine& line : memory.lines()) {
      if (line.bytes() == 0 || line.class_() == v1::BUFFER_CLASS_UNSPECIFIED) continue;
      EXPECT_THAT(page, HasSubstr(absl::StrCat("class=\"class-",
                                               v1::BufferClass_Name(line.class_()), "\"")));
    }
  }
  EXPECT_THAT(page, HasSubstr("budget 256.0 MiB"));
  EXPECT_THAT(page, HasSubstr("Plan of a&lt;b&gt; &amp; &quot;c&quot;"));
  EXPECT_THAT(page, Not(HasSubstr("a<b>")));
}

TEST(PlanHtmlTest, ShowsRemarksOnTheModel) {
  Prepared job = Job();
  job.plan.add_remarks("model.config: a<b: got 1, which nothing reads");
  EXPECT_THAT(PlanHtml(job), HasSubstr("<p>Note: model.config: a&lt;b: got 1"));
}

TEST(PlanHtmlTest, NeedsNothingFromElsewhere) {
  const std::string page = PlanHtml(Job());
  for (const char* word : {"<script", "<link", "src=", "href=", "url(", "@import"}) {
    EXPECT_THAT(page, Not(HasSubstr(word)));
  }
  EXPECT_LT(page.size(), size_t{2} << 20);
}

TEST(PlanHtmlTest, ShowsMemoryByLayerWithWhatWouldLowerIt) {
  const std::string page = PlanHtml(Job());
  EXPECT_THAT(page, HasSubstr("<h2>Memory by layer</h2>"));
  EXPECT_THAT(page, HasSubstr("<b>stage 0, device</b>, planned at the peak"));
  EXPECT_THAT(page, HasSubstr("<b>stage 1, host</b>, planned at the peak"));
  EXPECT_THAT(page, HasSubstr("layout.recompute: block keeps one activation a layer"));
  EXPECT_THAT(page, HasSubstr(">layer 0<"));
  EXPECT_THAT(page, Not(HasSubstr("<h3>Now</h3>"))) << "nothing was measured";
}

TEST(PlanHtmlTest, ShowsWhatARankHoldsNow) {
  Measured measured;
  measured.rank.set_rank(1);
  measured.rank.set_sequence("train");
  const v1::Instruction& first = TrainOf(Job().programs[1]).instructions(0);
  measured.rank.set_instruction(absl::StrCat(first.id(), " <b>", first.text()));
  const std::string page = PlanHtml(Job(), measured);
  EXPECT_THAT(page, HasSubstr("<h3>Now</h3>"));
  EXPECT_THAT(page, HasSubstr("<b>stage 1, device</b>, rank 1 now"));
  measured.rank.set_instruction("4000000 of another program");
  EXPECT_THAT(PlanHtml(Job(), measured), Not(HasSubstr("<h3>Now</h3>")));
}

// The simulated step as ranks write theirs, all twice as long.
std::string TraceOfRank(uint32_t rank, int64_t step) {
  std::string events = R"([{"ph":"M","pid":1,"tid":0,"name":"thread_name","args":{"name":"x"}})";
  const v1::Sequence& train = TrainOf(Job().programs[rank]);
  for (int i = 0; i < train.instructions_size(); ++i) {
    const RunInstruction& run = Job().simulation.stages[rank].instructions[i];
    if (!run.ran()) continue;
    absl::StrAppend(&events, R"(,{"ph":"X","pid":)", rank, R"(,"tid":0,"name":"x","ts":)",
                    1e6 + 2e6 * run.start_seconds, R"(,"dur":)",
                    2e6 * (run.end_seconds - run.start_seconds), R"(,"args":{"id":)",
                    train.instructions(i).id(), R"(,"step":)", step, R"(,"micro_batch":0}})");
  }
  return events + "]";
}

TEST(PlanHtmlTest, ShowsTheMeasuredTimelineBesideTheSimulatedOne) {
  const std::string page = PlanHtml(Job(), {.trace = TraceOfRank(1, 7), .rank = {}});
  EXPECT_THAT(page, HasSubstr("Step 8 of rank 1: <b>"));
  EXPECT_THAT(page, HasSubstr("Measured schedule of a rank over a step"));
  const auto measured = ReadMeasuredStep(TraceOfRank(1, 7), Job());
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(measured->stage, 1);
  const std::vector<BusyTime> busy = BusyTimes(Job(), *measured);
  ASSERT_FALSE(busy.empty());
  EXPECT_EQ(busy[0].name, "compute, forward");
  for (const BusyTime& one : busy)
    EXPECT_NEAR(one.measured_seconds, 2 * one.simulated_seconds, 1e-3 * one.simulated_seconds);
}

TEST(PlanHtmlTest, TextThatIsNoTraceOfTheseProgramsIsLeftOut) {
  const std::string rank_9 = absl::StrReplaceAll(TraceOfRank(1, 7), {{"\"pid\":1", "\"pid\":9"}});
  const std::string no_ids = absl::StrReplaceAll(TraceOfRank(1, 7), {{"\"id\":", "\"id\":77"}});
  for (const std::string& trace :
       {std::string("<script>"), std::string("[1,{\"ph\":\"X\"},null]"), std::string("{}"),
        std::string(R"([{"ph":"X","pid":-5,"args":{"id":1e300,"step":"a"},"ts":[],"dur":{}}])"),
        rank_9, no_ids, TraceOfRank(1, 7).substr(0, 2000)}) {
    EXPECT_FALSE(ReadMeasuredStep(trace, Job()).ok()) << trace.substr(0, 100);
    EXPECT_EQ(PlanHtml(Job(), {.trace = trace, .rank = {}}), PlanHtml(Job()));
  }
}

TEST(PlanHtmlTest, ARefusalIsSaid) {
  Prepared refused = Job();
  refused.refusal = absl::ResourceExhaustedError("too large");
  EXPECT_THAT(PlanHtml(refused), HasSubstr("does not fit</h1>"));
  EXPECT_THAT(PlanHtml(Job()), Not(HasSubstr("does not fit</h1>")));
}

TEST(PlanReportTest, TheSamePlanGivesTheSameBytes) {
  EXPECT_EQ(PlanHtml(Job()), PlanHtml(Prepared(Job())));
  EXPECT_EQ(PlanSvg(Job()), PlanSvg(Prepared(Job())));
  EXPECT_EQ(PlanTrace(Job()), PlanTrace(Prepared(Job())));
}

TEST(PlanTraceTest, EndsWithTheStepAndHasEveryInstruction) {
  const nlohmann::json trace = nlohmann::json::parse(PlanTrace(Job()));
  double end = 0;
  size_t slices = 0, processes = 0;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("name") == "process_name") {
      EXPECT_EQ(event.at("args").at("name"), absl::StrCat("stage ", processes++));
    }
    if (event.at("ph") != "X") continue;
    ++slices;
    end = std::max(end, event.at("ts").get<double>() + event.at("dur").get<double>());
  }
  EXPECT_EQ(processes, 2u);
  EXPECT_EQ(slices, Job().plan.instructions());
  EXPECT_NEAR(end * 1e-6, Job().plan.time().step_seconds(), 2e-9);  // written in nanoseconds
}

// Whole stages first, then the longest instructions of one.
TEST(PlanTraceTest, OfALargeJobAPartIsShownAndSaidToBe) {
  const auto slices_of = [](const nlohmann::json& trace) {
    return std::count_if(trace.at("traceEvents").begin(), trace.at("traceEvents").end(),
                         [](const nlohmann::json& event) { return event.at("ph") == "X"; });
  };
  const size_t all = Job().plan.instructions();
  const nlohmann::json whole = nlohmann::json::parse(PlanTrace(Job(), all));
  EXPECT_EQ(slices_of(whole), static_cast<int64_t>(all));
  EXPECT_EQ(whole.at("otherData").at("left_out"), "");
  const nlohmann::json stage = nlohmann::json::parse(PlanTrace(Job(), all - 1));
  EXPECT_LT(slices_of(stage), static_cast<int64_t>(all));
  EXPECT_GT(slices_of(stage), static_cast<int64_t>(all / 4));
  EXPECT_THAT(stage.at("otherData").at("left_out").get<std::string>(),
              HasSubstr("1 of 2 stages are shown"));
  const nlohmann::json few = nlohmann::json::parse(PlanTrace(Job(), 20));
  EXPECT_LE(slices_of(few), 20);
  EXPECT_GT(slices_of(few), 0);
  EXPECT_THAT(few.at("otherData").at("left_out").get<std::string>(),
              HasSubstr("short instructions are left out"));
  EXPECT_EQ(few.at("traceEvents").back().at("ph"), "i");
}

TEST(BreakdownTest, ThePartsOfEachStageSumToTheStep) {
  for (const StageTime& stage : BreakDown(Job())) {
    double seconds = 0;
    for (const TimePart& part : stage.parts) seconds += part.seconds;
    EXPECT_NEAR(seconds, Job().plan.time().step_seconds(), 1e-9) << "stage " << stage.stage;
  }
}

TEST(MemoryOverTimeTest, ABufferThatIsHandedOverIsNotCountedTwice) {
  // Buffer 0 always; 1 in [0, 5), handed over to 2 in [5, 14); 3 never; 4 on the host.
  v1::Program program;
  program.add_arenas()->set_tier(v1::DEVICE);
  program.add_arenas()->set_tier(v1::HOST);
  for (const int64_t bytes : {1000, 100, 300, 50, 7}) {
    v1::Buffer* buffer = program.add_buffers();
    buffer->set_id(program.buffers_size() - 1);
    buffer->set_bytes(bytes);
    buffer->set_lifetime(bytes == 1000 ? v1::PERSISTENT : v1::STEP);
    buffer->set_class_(bytes == 1000 ? v1::PARAMETER : v1::ACTIVATION);
    buffer->set_arena(bytes == 7 ? 1 : 0);
  }
  v1::Sequence* train = program.add_sequences();
  for (const uint32_t used : {1, 1, 2, 2}) {
    v1::Operand* operand = train->add_instructions()->add_operands();
    operand->set_access(v1::WRITE);
    operand->set_buffer(used);
  }
  const std::vector<RunInstruction> run = {{.start_seconds = 0, .end_seconds = 2},
                                           {.start_seconds = 2, .end_seconds = 5},
                                           {.start_seconds = 5, .end_seconds = 9},
                                           {.start_seconds = 9, .end_seconds = 14}};
  const MemoryOverTime memory = MemoryOf(program, *train, run, v1::DEVICE, 20, 4);
  EXPECT_EQ(memory.peak_bytes, 1300);
  EXPECT_EQ(memory.peak_seconds, 5);
  std::vector<int64_t> columns;
  for (const ByClass& column : memory.columns) columns.push_back(Total(column));
  EXPECT_THAT(columns, testing::ElementsAre(1100, 1300, 1300, 1000));
}

TEST(MemoryOverTimeTest, TheLargestColumnIsThePeak) {
  for (size_t i = 0; i < Job().programs.size(); ++i) {
    const SimulatedStage& stage = Job().simulation.stages[i];
    const v1::Program& program = Job().programs[i];
    const MemoryOverTime memory = MemoryOf(program, TrainOf(program), stage.instructions,
                                           v1::DEVICE, Job().simulation.step_seconds, 100);
    EXPECT_GT(memory.peak_bytes, 0);
    int64_t most = 0;
    for (const ByClass& column : memory.columns) most = std::max(most, Total(column));
    EXPECT_EQ(most, memory.peak_bytes);
    EXPECT_EQ(memory.columns.size(), 100u);
  }
}

}  // namespace
}  // namespace terrace
