// A coordinator with TLS, and peers with certificates of all kinds that try what they may not:
// each is refused with its sentence and counted, and honest peers go on.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/tls/authority.h"
#include "proto/unknown_call.h"
#include "proto/v1/drain.grpc.pb.h"
#include "proto/v1/job.grpc.pb.h"
#include "proto/v1/worker.grpc.pb.h"
#include "proto/worker_instance.h"
#include "tests/support/http_client.h"
#include "tests/system/control_cluster.h"

namespace terrace {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

constexpr absl::Duration kDay = absl::Hours(24);

class RolesTest : public testing::Test {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>;

  void SetUp() override {
    Write("ca.pem", authority_.certificate);
    WriteServer(authority_);
    StartCoordinator();
  }

  void StartCoordinator() {
    cluster_.StartCoordinator({"--tls-ca", File("ca.pem"), "--tls-cert", File("head.pem"),
                               "--tls-key", File("head.key"), "--metrics-listen",
                               absl::StrCat("127.0.0.1:", metrics_port_)});
  }

  // ---- certificates ----
  std::string File(const std::string& name) const { return cluster_.folder() + "/" + name; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(File(name)) << text;
  }
  void WriteServer(const KeyPair& authority) const {
    const auto head = IssueCertificate(
        authority, {.name = "head", .grants = {}, .hosts = {"localhost", "127.0.0.1"}}, absl::Now(),
        kDay);
    Write("head.pem", head->certificate);
    Write("head.key", head->key);
  }
  static KeyPair Issue(const KeyPair& authority, const Grant& grant, absl::Time now = absl::Now()) {
    return *IssueCertificate(authority, {.name = grant.name, .grants = {grant}, .hosts = {}}, now,
                             kDay);
  }
  KeyPair Of(Role role, const std::string& name) const { return Issue(authority_, {role, name}); }
  void StartWorker(const std::string& name) {
    const KeyPair pair = Of(Role::kWorker, name);
    Write(name + ".pem", pair.certificate);
    Write(name + ".key", pair.key);
    cluster_.StartWorker(name, 1,
                         {"--tls-ca", File("ca.pem"), "--tls-cert", File(name + ".pem"),
                          "--tls-key", File(name + ".key")});
  }

  // ---- peers ----
  // Without a pair no certificate is shown.
  std::shared_ptr<grpc::Channel> Dial(const KeyPair& pair = {}) const {
    return Dial(pair, authority_.certificate);
  }
  std::shared_ptr<grpc::Channel> Dial(const KeyPair& pair, const std::string& authorities) const {
    grpc::ChannelArguments alone;
    alone.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("localhost:", cluster_.port()),
                                     grpc::SslCredentials({.pem_root_certs = authorities,
                                                           .pem_private_key = pair.key,
                                                           .pem_cert_chain = pair.certificate}),
                                     alone);
  }
  static grpc::Status List(const std::shared_ptr<grpc::Channel>& channel,
                           v1::ListJobsResponse* jobs = nullptr) {
    v1::ListJobsResponse ignored;
    grpc::ClientContext context;
    return v1::JobService::NewStub(channel)->List(&context, {}, jobs == nullptr ? &ignored : jobs);
  }
  grpc::Status Cancel(Role role, const std::string& name, const std::string& id) const {
    v1::CancelJobRequest request;
    request.set_id(id);
    request.set_force(true);
    v1::CancelJobResponse response;
    grpc::ClientContext context;
    return v1::JobService::NewStub(Dial(Of(role, name)))->Cancel(&context, request, &response);
  }
  grpc::Status Submit(Role role, const std::string& name, const std::string& words,
                      std::string* id) {
    const std::string job = absl::StrCat("job", ++jobs_);
    v1::SubmitRequest request;
    request.set_yaml(cluster_.Spec(job, words, 1));
    request.set_base_directory(cluster_.folder());
    Write("text.txt", std::string(4096, 'x'));
    v1::SubmitResponse response;
    grpc::ClientContext context;
    const grpc::Status status =
        v1::JobService::NewStub(Dial(Of(role, name)))->Submit(&context, request, &response);
    *id = response.job().id();
    return status;
  }
  v1::Job Get(const std::string& id) const {
    v1::GetJobRequest request;
    request.set_id(id);
    v1::GetJobResponse response;
    grpc::ClientContext context;
    const grpc::Status status =
        v1::JobService::NewStub(Dial(Of(Role::kViewer, "eve")))->Get(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }
  // Of alice, on node-1; at some step.
  std::string RunningJob() {
    StartWorker("node-1");
    EXPECT_TRUE(WaitUntil([&] { return State("node-1") == "ready"; }));
    std::string id;
    const grpc::Status status = Submit(Role::kSubmitter, "alice", "steps=100000 step_ms=5", &id);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(WaitUntil([&] { return Get(id).progress().step() > 3; }));
    return id;
  }
  std::string State(const std::string& node) const {
    v1::ListNodesResponse nodes;
    grpc::ClientContext context;
    v1::JobService::NewStub(Dial(Of(Role::kViewer, "eve")))->ListNodes(&context, {}, &nodes);
    for (const v1::Node& one : nodes.nodes()) {
      if (one.name() == node) return one.state();
    }
    return "";
  }

  // A worker's stream, hand-made.
  struct Peer {
    std::unique_ptr<v1::WorkerService::Stub> stub;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<Stream> stream;

    // What the coordinator answers to a registration as `name`.
    std::string Register(const std::string& name, uint32_t devices = 1) {
      v1::WorkerMessage hello;
      v1::Node& node = *hello.mutable_register_()->mutable_node();
      node.set_name(name);
      node.set_devices(devices);
      node.set_device("cpu");
      node.set_device_memory_bytes(int64_t{1} << 30);
      node.set_threads_per_device(1);
      stream->Write(hello);
      v1::CoordinatorMessage reply;
      return stream->Read(&reply) ? reply.registered().error() : "no answer";
    }
    // Until the stream ends.
    grpc::Status End() {
      v1::CoordinatorMessage ignored;
      while (stream->Read(&ignored)) {
      }
      return stream->Finish();
    }
  };
  Peer Connect(const KeyPair& pair) const { return Connect(Dial(pair)); }
  static Peer Connect(const std::shared_ptr<grpc::Channel>& channel,
                      const std::string& instance = "") {
    Peer peer;
    peer.stub = v1::WorkerService::NewStub(channel);
    peer.context = std::make_unique<grpc::ClientContext>();
    if (!instance.empty()) peer.context->AddMetadata(kWorkerInstanceKey, instance);
    peer.context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    peer.stream = peer.stub->Connect(peer.context.get());
    return peer;
  }

  // ---- what is seen of it ----
  int64_t Refused(const std::string& reason) const {
    const std::string text = testing_http::Ask(metrics_port_, "GET /metrics");
    const std::string series = absl::StrCat("terrace_refused_total{reason=\"", reason, "\"} ");
    const size_t at = text.find(series);
    double count = -1;
    if (at != std::string::npos) {
      const size_t begin = at + series.size();
      EXPECT_TRUE(absl::SimpleAtod(text.substr(begin, text.find('\n', begin) - begin), &count));
    }
    return static_cast<int64_t>(count);
  }
  // Refused with that code and these words, and counted under `reason`.
  void Expect(const grpc::Status& status, StatusCode code, const std::string& words,
              const std::string& reason) const {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(words));
    // A scrape may be a moment old.
    EXPECT_TRUE(WaitUntil([&] { return Refused(reason) > 0; })) << reason;
  }
  std::string Audit() const {
    std::ifstream file(File("coordinator/audit.jsonl"));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  std::string Log() const {
    std::ifstream file(File("coordinator.log"));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  const KeyPair authority_ = *MakeAuthority("here", absl::Now(), 10 * kDay);
  const int metrics_port_ = 12000 + getpid() % 19000;
  int jobs_ = 0;
  ControlCluster cluster_;
};

TEST_F(RolesTest, WhoIsRefusedIsToldWhy) {
  Expect(List(Dial()), StatusCode::UNAUTHENTICATED, "no certificate was shown: give --tls-cert",
         "no_certificate");
  const KeyPair elsewhere = *MakeAuthority("elsewhere", absl::Now(), kDay);
  Expect(List(Dial(Issue(elsewhere, {Role::kOperator, "mallory"}))), StatusCode::UNAUTHENTICATED,
         "the certificate of CN=mallory, signed by CN=elsewhere, is not signed by the authority "
         "that is trusted here (CN=here)",
         "wrong_authority");
  Expect(List(Dial(Issue(authority_, {Role::kViewer, "late"}, absl::Now() - 2 * kDay))),
         StatusCode::UNAUTHENTICATED, "the certificate of CN=late ran out on", "expired");
  Expect(List(Dial(Issue(authority_, {Role::kViewer, "early"}, absl::Now() + kDay))),
         StatusCode::UNAUTHENTICATED, "the certificate of CN=early is valid from", "not_yet_valid");
  Expect(List(Dial(*IssueCertificate(authority_, {.name = "head", .grants = {}, .hosts = {"head"}},
                                     absl::Now(), kDay))),
         StatusCode::UNAUTHENTICATED, "the certificate of CN=head names no role", "no_role");
  // A holder's certificate is no authority.
  const KeyPair eve = Of(Role::kViewer, "eve");
  KeyPair forged = Issue(eve, {Role::kOperator, "forged"});
  forged.certificate += eve.certificate;
  Expect(List(Dial(forged)), StatusCode::UNAUTHENTICATED, "is not signed by the authority",
         "wrong_authority");
  EXPECT_TRUE(List(Dial(eve)).ok());
  EXPECT_EQ(Audit(), "") << "nobody is known to have asked for anything";
}

TEST_F(RolesTest, NothingAnswersWhoIsNotAdmitted) {
  const auto call = [](const std::shared_ptr<grpc::Channel>& channel, const std::string& path) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    const grpc::Slice empty("");
    grpc::ByteBuffer request(&empty, 1), response;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, path, {}, &request, &response,
                   [&done](grpc::Status status) { done.set_value(std::move(status)); });
    return done.get_future().get();
  };
  for (const char* path : {"/grpc.health.v1.Health/Check", "/terrace.v1.JobService/Submit",
                           "/terrace.v1.DrainService/Drain", "/terrace.v1.JobService/Absent"}) {
    EXPECT_EQ(call(Dial(), path).error_code(), StatusCode::UNAUTHENTICATED) << path;
  }
  const KeyPair eve = Of(Role::kViewer, "eve");
  EXPECT_TRUE(call(Dial(eve), "/grpc.health.v1.Health/Check").ok());
  const grpc::Status absent = call(Dial(eve), "/terrace.v1.JobService/Absent");
  EXPECT_EQ(absent.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(absent.error_message(), kUnknownCall);
}

TEST_F(RolesTest, PeopleDoWhatTheirRoleAllows) {
  const std::string id = RunningJob();
  EXPECT_EQ(Get(id).owner(), "alice");
  std::string none;
  Expect(Submit(Role::kViewer, "eve", "steps=1", &none), StatusCode::PERMISSION_DENIED,
         "viewer eve may not Submit: a submitter or an operator may", "role");
  Expect(Cancel(Role::kSubmitter, "carol", id), StatusCode::PERMISSION_DENIED,
         absl::StrCat("submitter carol may not Cancel job ", id,
                      ", which alice submitted: alice or an operator may"),
         "not_own");
  v1::DrainRequest drain;
  drain.set_node("node-1");
  v1::DrainResponse drained;
  grpc::ClientContext context;
  Expect(v1::DrainService::NewStub(Dial(Of(Role::kSubmitter, "alice")))
             ->Drain(&context, drain, &drained),
         StatusCode::PERMISSION_DENIED, "submitter alice may not Drain", "role");
  Expect(List(Dial(Of(Role::kWorker, "node-1"))), StatusCode::PERMISSION_DENIED,
         "worker node-1 may not List", "role");
  EXPECT_EQ(Get(id).state(), v1::RUNNING);
  EXPECT_TRUE(Cancel(Role::kSubmitter, "alice", id).ok());
  EXPECT_TRUE(WaitUntil([&] { return Get(id).state() == v1::CANCELLED; }));
  ASSERT_TRUE(Submit(Role::kSubmitter, "alice", "steps=100000 step_ms=5", &none).ok());
  EXPECT_TRUE(Cancel(Role::kOperator, "bob", none).ok());

  const std::string audit = Audit();
  for (const std::string& line :
       {absl::StrCat("\"call\":\"Cancel\",\"job\":\"", id,
                     "\",\"arguments\":{\"force\":\"true\"},\"by\":[{\"role\":\"submitter\","
                     "\"name\":\"carol\"}],\"shown\":\"certificate\""),
        std::string("\"status\":\"PERMISSION_DENIED\",\"message\":\"submitter carol may not"),
        absl::StrCat("\"call\":\"Submit\",\"job\":\"", id, "\""),
        std::string("\"call\":\"Register\",\"node\":\"node-1\"")}) {
    EXPECT_THAT(audit, HasSubstr(line));
  }
}

TEST_F(RolesTest, NobodyRegistersAsAnotherWorker) {
  const std::string id = RunningJob();
  Peer person = Connect(Of(Role::kSubmitter, "node-1"));
  EXPECT_EQ(person.Register("node-1"), "no answer");
  Expect(person.End(), StatusCode::PERMISSION_DENIED,
         "submitter node-1 may not Connect: a worker may", "role");
  Peer other = Connect(Of(Role::kWorker, "node-2"));
  const std::string sentence =
      "worker node-2 may not Connect worker node-1: worker node-1 itself may";
  EXPECT_EQ(other.Register("node-1"), sentence);
  Expect(other.End(), StatusCode::PERMISSION_DENIED, sentence, "not_own");
  // The real one was not thrown out, and its ranks were not killed.
  EXPECT_EQ(State("node-1"), "ready");
  const v1::Job job = Get(id);
  EXPECT_EQ(job.restarts(), 0);
  EXPECT_TRUE(WaitUntil([&] { return Get(id).progress().step() > job.progress().step(); }));
  EXPECT_THAT(Audit(), HasSubstr("\"call\":\"Register\",\"node\":\"node-1\",\"by\":[{\"role\":"
                                 "\"worker\",\"name\":\"node-2\"}]"));
  EXPECT_EQ(Connect(Of(Role::kWorker, "*")).Register("node-3"), "") << "one of any name";
}

TEST_F(RolesTest, AWorkerCannotReachIntoJobsOfOthers) {
  const std::string id = RunningJob();
  const int64_t epoch = Get(id).epoch();
  Peer forger = Connect(Of(Role::kWorker, "node-2"));
  ASSERT_EQ(forger.Register("node-2"), "");
  v1::WorkerMessage report;
  v1::RankReport& rank = *report.mutable_heartbeat()->add_ranks();
  rank.set_job(id);
  rank.set_epoch(epoch);
  rank.set_state(v1::RANK_SUCCEEDED);
  rank.mutable_progress()->set_step(100'000);
  ASSERT_TRUE(forger.stream->Write(report));
  v1::WorkerMessage program;
  program.mutable_need_program()->set_sha256(Get(id).plan().program_sha256(0));
  ASSERT_TRUE(forger.stream->Write(program));
  v1::CoordinatorMessage answer;
  while (forger.stream->Read(&answer) && !answer.has_program()) {
  }
  EXPECT_THAT(answer.program().error(), HasSubstr("no job that runs on this worker has it"));
  EXPECT_EQ(answer.program().data(), "");
  v1::WorkerMessage set;
  set.mutable_kv_set()->set_job(id);
  set.mutable_kv_set()->set_epoch(epoch);
  set.mutable_kv_set()->set_key("data.0/0");
  set.mutable_kv_set()->set_value(std::string(1 << 20, 'x'));
  ASSERT_TRUE(forger.stream->Write(set));
  Expect(forger.End(), StatusCode::PERMISSION_DENIED,
         absl::StrCat("worker node-2 speaks of job ", id, ", of which no rank runs there"),
         "not_placed");
  const v1::Job job = Get(id);
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_LT(job.progress().step(), 100'000);
  EXPECT_EQ(job.restarts(), 0);
  EXPECT_TRUE(WaitUntil([&] { return Get(id).progress().step() > job.progress().step(); }));

  // Nor does it take another worker out of use, but itself.
  const auto drain = [&](const std::string& node) {
    v1::DrainRequest request;
    request.set_node(node);
    v1::DrainResponse response;
    grpc::ClientContext context;
    return v1::DrainService::NewStub(Dial(Of(Role::kWorker, "node-2")))
        ->Drain(&context, request, &response);
  };
  Expect(drain("node-1"), StatusCode::PERMISSION_DENIED, "worker node-1 itself or an operator may",
         "not_own");
  EXPECT_TRUE(drain("node-2").ok());
}

TEST_F(RolesTest, WorkersThatSayNonsenseAreRefusedAndDelayNobody) {
  const std::string id = RunningJob();
  const KeyPair any = Of(Role::kWorker, "*");
  for (const char* name : {"../../x", "a\nb", ""}) {
    Peer peer = Connect(any);
    EXPECT_THAT(peer.Register(name), HasSubstr("the worker's name: got"));
    Expect(peer.End(), StatusCode::INVALID_ARGUMENT, "the worker's name: got", "nonsense");
  }
  EXPECT_THAT(Connect(any).Register(std::string(10'000'000, 'n')), HasSubstr("the worker's name"));
  EXPECT_THAT(Connect(any).Register("node-2", UINT32_MAX),
              HasSubstr("devices: got 4294967295, must be from 1 to 1024"));

  // The same name from another process.
  Peer twin = Connect(Dial(Of(Role::kWorker, "node-1")), "another process");
  EXPECT_THAT(twin.Register("node-1"), HasSubstr("a worker node-1 is connected, from"));
  Expect(twin.End(), StatusCode::ALREADY_EXISTS, "names must differ", "name_taken");

  // A state that there is not, a key beyond its limit, a message beyond its limit.
  Peer liar = Connect(any);
  ASSERT_EQ(liar.Register("node-2"), "");
  v1::WorkerMessage report;
  report.mutable_heartbeat()->add_ranks()->set_state(static_cast<v1::RankState>(99));
  ASSERT_TRUE(liar.stream->Write(report));
  Expect(liar.End(), StatusCode::INVALID_ARGUMENT, "state 99", "nonsense");
  Peer large = Connect(any);
  ASSERT_EQ(large.Register("node-3"), "");
  v1::WorkerMessage bytes;
  bytes.mutable_log_text()->set_text(std::string(100 << 20, 'x'));
  large.stream->Write(bytes);
  EXPECT_FALSE(large.End().ok());

  // Streams that say nothing, more than a connection may have: to open the last ones waits until
  // the first ones are ended.
  const v1::Job job = Get(id);
  const auto channel = Dial(any);
  std::vector<Peer> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(Connect(channel));
  Expect(silent.front().End(), StatusCode::DEADLINE_EXCEEDED,
         "no worker registered on this stream within 10 s", "silent");
  for (Peer& peer : silent) peer.context->TryCancel();
  silent.front().stream.reset();
  EXPECT_EQ(State("node-1"), "ready");
  EXPECT_GT(Get(id).progress().step(), job.progress().step());
  EXPECT_EQ(Get(id).restarts(), 0);
}

TEST_F(RolesTest, CertificatesAreReadAgainOnSighupAndWhenTheirFilesChange) {
  const std::string id = RunningJob();
  const KeyPair eve = Of(Role::kViewer, "eve");
  const auto before = Dial(eve);
  ASSERT_TRUE(List(before).ok());

  // What does not fit changes nothing.
  const KeyPair next = *MakeAuthority("next", absl::Now(), 10 * kDay);
  Write("ca.pem", "no certificate");
  cluster_.coordinator().Signal(SIGHUP);
  EXPECT_TRUE(
      WaitUntil([&] { return absl::StrContains(Log(), "the certificates stay as they were"); }));
  ASSERT_TRUE(List(Dial(eve)).ok());

  // Both authorities, and a certificate of the next one.
  Write("ca.pem", next.certificate + authority_.certificate);
  WriteServer(next);
  cluster_.coordinator().Signal(SIGHUP);
  const KeyPair newer = Issue(next, {Role::kViewer, "eve"});
  EXPECT_TRUE(WaitUntil([&] { return List(Dial(newer, next.certificate)).ok(); }));
  EXPECT_FALSE(List(Dial(eve)).ok()) << "the coordinator's certificate is another authority's";
  EXPECT_TRUE(List(Dial(eve, next.certificate)).ok());
  EXPECT_TRUE(List(before).ok()) << "connections go on";

  // The worker takes new files too, and its job goes on.
  const KeyPair worker = Issue(next, {Role::kWorker, "node-1"});
  Write("node-1.pem", worker.certificate);
  Write("node-1.key", worker.key);
  const size_t registered = Log().size();
  cluster_.worker("node-1").Signal(SIGHUP);
  EXPECT_TRUE(
      WaitUntil([&] { return absl::StrContains(Log().substr(registered), "worker node-1 at"); }));

  // Without the old authority, and without a signal, its certificates are refused, on connections
  // that there are too.
  Write("ca.pem", next.certificate);
  EXPECT_TRUE(WaitUntil([&] { return !List(before).ok(); }));
  Expect(List(before), StatusCode::UNAUTHENTICATED,
         "is not signed by the authority that is trusted", "wrong_authority");
  const auto get = [&] {
    v1::GetJobRequest request;
    request.set_id(id);
    v1::GetJobResponse response;
    grpc::ClientContext context;
    v1::JobService::NewStub(Dial(newer, next.certificate))->Get(&context, request, &response);
    return response.job();
  };
  const v1::Job job = get();
  EXPECT_TRUE(WaitUntil([&] { return get().progress().step() > job.progress().step(); }));
  EXPECT_EQ(get().restarts(), 0);
}

}  // namespace
}  // namespace terrace
