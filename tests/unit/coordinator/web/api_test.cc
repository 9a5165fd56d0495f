// SPDX-License-Identifier: Apache-2.0
#include "coordinator/web/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "coordinator/store/memory_store.h"
#include "coordinator/web/web_page.h"
#include "tests/support/fake_planner.h"
#include "tests/support/fake_worker.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr char kToken[] = "0123456789abcdef";

absl::StatusOr<v1::PlannerAnswer> Answer(const v1::PlannerRequest& request) {
  v1::PlannerAnswer answer;
  if (request.has_page()) answer.set_page(absl::StrCat("page of ", request.page().spec().name()));
  return answer;
}

class LoggingWorker final : public WorkerConnection {
 public:
  explicit LoggingWorker(FakeWorker& worker) : worker_(worker) {}
  void Send(const v1::CoordinatorMessage& message) override {
    worker_.Handle(message);
    if (message.has_read_log()) read = message.read_log();
  }
  v1::ReadLog read;  // the newest

 private:
  FakeWorker& worker_;
};

class WebApiTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(control_.Start().ok());
    OnLoop([&] {
      session_ = control_.NewSession();
      ASSERT_TRUE(control_.reconciler().WorkerRegistered(worker_.node(), session_).ok());
      control_.AttachWorker(worker_.name(), session_, &connection_);
    });
  }
  void TearDown() override { control_.Stop(); }

  void OnLoop(const std::function<void()>& work) { ASSERT_TRUE(control_.loop().Call(work)); }

  // A job with a plan that starts at once.
  std::string Submit(const std::string& name) {
    std::string id;
    OnLoop([&] {
      v1::JobSpec spec;
      spec.set_name(name);
      spec.mutable_resources()->set_nodes_min(1);
      spec.mutable_resources()->set_nodes_max(1);
      spec.mutable_resources()->set_devices_per_node(1);
      PlannedJob planned;
      planned.plan.mutable_layout()->set_ranks(1);
      planned.plan.mutable_layout()->set_nodes(1);
      planned.plan.add_program_sha256("p");
      planned.programs = {{.sha256 = "p", .bytes = ""}};
      const auto job = control_.reconciler().Submit(spec, planned);
      ASSERT_TRUE(job.ok()) << job.status();
      id = job->id();
      Say(worker_.Heartbeat());
      control_.reconciler().Pass();
      Say(worker_.Heartbeat());
      control_.reconciler().Pass();
    });
    return id;
  }
  void Say(const v1::WorkerMessage& message) {
    ASSERT_TRUE(control_.reconciler().WorkerSaid(worker_.name(), session_, message).ok());
  }
  void Step(const std::string& job, int64_t step, double loss) {
    OnLoop([&] {
      v1::WorkerMessage message;
      v1::JobEvent& event = *message.add_events();
      event.set_job(job);
      event.set_epoch(1);
      event.mutable_step()->set_step(step);
      event.mutable_step()->set_loss(loss);
      Say(message);
    });
  }

  struct Asked {
    HttpResponse response;
    absl::Notification done;
  };
  std::shared_ptr<Asked> Begin(HttpRequest request) {
    auto asked = std::make_shared<Asked>();
    if (request.host.empty()) request.host = "localhost:7071";
    if (request.method.empty()) request.method = "GET";
    page_(request, [asked](HttpResponse response) {
      asked->response = std::move(response);
      asked->done.Notify();
    });
    return asked;
  }
  HttpResponse Ask(const HttpRequest& request) {
    const auto asked = Begin(request);
    EXPECT_TRUE(asked->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
    return asked->response;
  }
  json Json(const HttpRequest& request) { return json::parse(Ask(request).body); }

  MemoryStore store_;
  SystemClock clock_;
  FakeWorker worker_{"w0", 1};
  LoggingWorker connection_{worker_};
  uint64_t session_ = 0;
  FakePlanner planner_{&Answer};
  Control control_{{}, store_, clock_, planner_};
  HttpServer::Handler page_ =
      WebPage(control_, {.listen = "127.0.0.1:7071", .operator_token = kToken});
};

TEST_F(WebApiTest, ListsJobsTheNewestFirst) {
  const std::string first = Submit("one"), second = Submit("two");
  const json all = Json({.path = "/api/v1/jobs"});
  EXPECT_EQ(all["total"], 2);
  EXPECT_EQ(all["jobs"][0]["id"], second);
  EXPECT_EQ(all["jobs"][1]["name"], "one");
  EXPECT_EQ(all["operator"], true);
  const json found = Json({.path = "/api/v1/jobs", .query = {{"q", "ONE"}, {"state", "active"}}});
  EXPECT_EQ(found["jobs"].size(), 1u);
  EXPECT_EQ(found["total"], 1);
  EXPECT_EQ(Json({.path = "/api/v1/jobs", .query = {{"state", "ended"}}})["total"], 0);
  const json page = Json({.path = "/api/v1/jobs", .query = {{"offset", "1"}, {"limit", "1"}}});
  EXPECT_EQ(page["jobs"][0]["id"], first);
}

TEST_F(WebApiTest, WhatIsAskedWronglyIsAnErrorWithASentence) {
  Submit("one");
  EXPECT_EQ(Ask({.path = "/api/v1/jobs/none-9"}).code, 404);
  EXPECT_THAT(std::string(Json({.path = "/api/v1/jobs/none-9"})["error"]), HasSubstr("none-9"));
  EXPECT_EQ(Ask({.path = "/api/v1/jobs", .query = {{"state", "asleep"}}}).code, 400);
  EXPECT_EQ(Ask({.path = "/api/v1/jobs", .query = {{"limit", "1e9"}}}).code, 400);
  EXPECT_EQ(Ask({.path = "/api/v1/jobs/one-1/events", .query = {{"wait", "-1"}}}).code, 400);
  EXPECT_EQ(Ask({.path = "/api/v1/jobs/one-1/memory"}).code, 409);
  EXPECT_EQ(Ask({.path = "/api/v1/jobs/one-1/secrets"}).code, 404);
  EXPECT_EQ(Ask({.method = "POST", .path = "/api/v1/jobs"}).code, 404);
  EXPECT_EQ(Ask({.path = "/../etc/passwd"}).code, 404);
}

TEST_F(WebApiTest, AJobAndItsLifeAndItsPlan) {
  const std::string id = Submit("one");
  Step(id, 1, 5.5);
  Step(id, 2, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(Json({.path = "/api/v1/jobs/" + id})["spec"]["name"], "one");
  const json history = Json({.path = "/api/v1/jobs/" + id + "/history"});
  EXPECT_EQ(history["steps"]["step"], json({1, 2}));
  EXPECT_EQ(history["steps"]["loss"], json({5.5, nullptr}));
  const HttpResponse plan = Ask({.path = "/api/v1/jobs/" + id + "/plan"});
  EXPECT_EQ(plan.body, "page of one");
  EXPECT_THAT(plan.content_type, HasSubstr("text/html"));
  EXPECT_EQ(Json({.path = "/api/v1/nodes"})["nodes"][0]["name"], "w0");
}

TEST_F(WebApiTest, ALongPollAnswersWhenSomethingHappensOrItsTimeIsOver) {
  const std::string id = Submit("one");
  const json before = Json({.path = "/api/v1/jobs/" + id + "/events"});
  const std::string last = absl::StrCat(before["last_sequence"].get<int64_t>());
  const auto waiting =
      Begin({.path = "/api/v1/jobs/" + id + "/events", .query = {{"after", last}, {"wait", "30"}}});
  EXPECT_FALSE(waiting->done.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  Step(id, 1, 5.5);
  ASSERT_TRUE(waiting->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  const json after = json::parse(waiting->response.body);
  EXPECT_EQ(after["events"][0]["step"]["loss"], 5.5);
  EXPECT_EQ(after["over"], false);
  const json late = Json(
      {.path = "/api/v1/jobs/" + id + "/events",
       .query = {{"after", absl::StrCat(after["last_sequence"].get<int64_t>())}, {"wait", "1"}}});
  EXPECT_TRUE(late["events"].empty());
}

TEST_F(WebApiTest, TheEndOfALogAndWhatComesAfterIt) {
  const std::string id = Submit("one");
  const auto asked = Begin({.path = "/api/v1/jobs/" + id + "/logs", .query = {{"tail", "7"}}});
  OnLoop([&] {
    EXPECT_EQ(connection_.read.tail_lines(), 7);
    v1::LogText chunk;
    chunk.set_request(connection_.read.request());
    chunk.set_text("a \xff b");
    chunk.mutable_position()->set_epoch(1);
    chunk.mutable_position()->set_offset(5);
    control_.LogArrived("w0", chunk);
    chunk.clear_text();
    chunk.set_end(true);
    control_.LogArrived("w0", chunk);
  });
  ASSERT_TRUE(asked->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  const json log = json::parse(asked->response.body);
  EXPECT_EQ(log["text"], "a \xef\xbf\xbd b") << "JSON is UTF-8";
  EXPECT_EQ(log["offset"], 5);
  EXPECT_EQ(Ask({.path = "/api/v1/jobs/" + id + "/logs", .query = {{"rank", "4"}}}).code, 404);
}

TEST_F(WebApiTest, CancelNeedsTheToken) {
  const std::string id = Submit("one");
  HttpRequest cancel{.method = "POST", .path = "/api/v1/jobs/" + id + "/cancel"};
  EXPECT_EQ(Ask(cancel).code, 401);
  cancel.authorization = "Bearer 0123456789abcdeF";
  EXPECT_EQ(Ask(cancel).code, 401);
  EXPECT_EQ(Json({.path = "/api/v1/jobs/" + id}).value("cancel_requested", false), false);
  cancel.authorization = absl::StrCat("Bearer ", kToken);
  EXPECT_EQ(Ask(cancel).code, 200);
  page_ = WebPage(control_, {.listen = "127.0.0.1:7071", .operator_token = ""});
  cancel.authorization = "Bearer ";
  EXPECT_EQ(Ask(cancel).code, 403);
}

TEST_F(WebApiTest, PauseAndResumeNeedTheTokenToo) {
  const std::string id = Submit("one");
  HttpRequest pause{.method = "POST", .path = "/api/v1/jobs/" + id + "/pause"};
  HttpRequest resume{.method = "POST", .path = "/api/v1/jobs/" + id + "/resume"};
  for (HttpRequest* request : {&pause, &resume}) {
    EXPECT_EQ(Ask(*request).code, 401);
    request->authorization = "Bearer 0123456789abcdeF";
    EXPECT_EQ(Ask(*request).code, 401);
    request->authorization = absl::StrCat("Bearer ", kToken);
  }
  EXPECT_NE(Json({.path = "/api/v1/jobs/" + id})["state"], "PAUSED");
  pause.query = {{"force", "2"}};
  EXPECT_EQ(Ask(pause).code, 400);
  pause.query = {{"force", "1"}};
  const json paused = Json(pause);
  EXPECT_EQ(paused["state"], "PAUSED");
  EXPECT_EQ(paused["reason"], "REASON_PAUSED_BY_USER");
  EXPECT_EQ(Json({.path = "/api/v1/jobs", .query = {{"state", "PAUSED"}}})["total"], 1);
  EXPECT_NE(Json(resume)["state"], "PAUSED");
  EXPECT_EQ(Ask(resume).code, 200) << "again, it changes nothing";
  OnLoop([&] { ASSERT_TRUE(control_.reconciler().Cancel(id, /*force=*/true).ok()); });
  EXPECT_EQ(Ask(pause).code, 409);
  EXPECT_EQ(Ask(resume).code, 409);
  page_ = WebPage(control_, {.listen = "127.0.0.1:7071", .operator_token = ""});
  pause.authorization = resume.authorization = "Bearer ";
  EXPECT_EQ(Ask(pause).code, 403);
  EXPECT_EQ(Ask(resume).code, 403);
}

TEST_F(WebApiTest, ItsFilesComeWithAPolicyAndOnlyUnderALocalName) {
  const HttpResponse index = Ask({.path = "/"});
  EXPECT_EQ(index.code, 200);
  EXPECT_THAT(index.content_type, HasSubstr("text/html"));
  bool has_policy = false;
  for (const auto& [name, value] : index.headers) {
    has_policy |=
        name == "Content-Security-Policy" && value.find("script-src 'self'") != value.npos;
  }
  EXPECT_TRUE(has_policy);
  EXPECT_THAT(index.body, Not(HasSubstr("<script>")));
  EXPECT_EQ(Ask({.path = "/", .host = "evil.example:7071"}).code, 403);
  EXPECT_EQ(Ask({.path = "/api/v1/jobs", .host = "evil.example"}).code, 403);
  EXPECT_EQ(Ask({.path = "/assets/uPlot.iife.min.js"}).code, 200);
}

}  // namespace
}  // namespace terrace
