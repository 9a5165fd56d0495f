// An offline run: records in the format of LevelDB's log (blocks of 32 KiB; the check is zlib's
// CRC-32 over the type and the bytes), after a header of its own (wandb 0.19,
// wandb/sdk/internal/datastore.py).
//
// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "client/run_log/checksum.h"
#include "client/run_log/run_log.h"
#include "client/run_log/scalars.h"
#include "client/run_log/wandb.pb.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr size_t kBlockBytes = 32768;
constexpr size_t kHeaderBytes = 7;  // of the file, and of each record
constexpr char kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4;

// Splits records over blocks.
class BlockWriter {
 public:
  BlockWriter(std::string path, UniqueFd file) : path_(std::move(path)), file_(std::move(file)) {}

  absl::Status Begin() { return Put(std::string(":W&B\xE1\xBE\0", kHeaderBytes)); }

  absl::Status Write(std::string_view data) {
    std::string out;
    bool is_first = true;
    do {
      size_t room = kBlockBytes - (bytes_ + out.size()) % kBlockBytes;
      if (room < kHeaderBytes) {
        out.append(room, '\0');
        room = kBlockBytes;
      }
      const std::string_view part = data.substr(0, room - kHeaderBytes);
      data.remove_prefix(part.size());
      const char type = data.empty() ? (is_first ? kFull : kLast) : (is_first ? kFirst : kMiddle);
      out += Record(type, part);
      is_first = false;
    } while (!data.empty());
    return Put(out);
  }
  absl::Status Sync() { return SyncFile(file_, path_); }

 private:
  static std::string Record(char type, std::string_view part) {
    std::string checked(1, type);
    checked += part;
    const uint32_t check = Crc32(checked);
    const auto length = static_cast<uint16_t>(part.size());
    std::string header(kHeaderBytes, type);
    std::memcpy(header.data(), &check, sizeof check);
    std::memcpy(header.data() + sizeof check, &length, sizeof length);
    return header + std::string(part);
  }
  absl::Status Put(const std::string& text) {
    bytes_ += text.size();
    return WriteAll(file_, std::as_bytes(std::span(text)), path_);
  }

  const std::string path_;
  const UniqueFd file_;
  size_t bytes_ = 0;
};

// As W&B's own JSON has it: what is not finite are words.
std::string NumberJson(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return nlohmann::json(value).dump();
}

void AddItem(std::string_view key, std::string json, wandb::Item* item) {
  item->set_key(std::string(key));
  item->set_value_json(std::move(json));
}

wandb::RunRecord RunOf(const v1::Job& job, const std::string& id) {
  wandb::RunRecord run;
  run.set_run_id(id);
  run.set_project("terrace");
  run.set_display_name(job.id());
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  run.set_host(host);
  run.mutable_start_time()->set_seconds(job.submitted_unix_ms() / 1000);
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(job.spec(), &text, print);
  const nlohmann::json spec = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  for (const auto& [key, value] : spec.items()) {
    if (key == "yaml") continue;  // the same once more
    AddItem(key, value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
            run.mutable_config()->add_update());
  }
  return run;
}

class WandbLog final : public RunLog {
 public:
  WandbLog(std::string path, UniqueFd file) : blocks_(std::move(path), std::move(file)) {}

  absl::Status Begin(const v1::Job& job, const std::string& id) {
    begin_unix_ms_ = job.submitted_unix_ms();
    RETURN_IF_ERROR(blocks_.Begin());
    wandb::Record header;
    header.mutable_header()->mutable_version_info()->set_producer("terrace");
    header.mutable_header()->mutable_version_info()->set_min_consumer("0.10.0");
    RETURN_IF_ERROR(Write(&header));
    wandb::Record run;
    *run.mutable_run() = RunOf(job, id);
    return Write(&run);
  }

  absl::Status Add(const v1::JobEvent& event) override {
    const Point point = PointOf(event);
    if (point.scalars.empty()) return absl::OkStatus();
    const double unix_seconds = static_cast<double>(event.unix_ms()) / 1000;
    wandb::Record record;
    wandb::HistoryRecord& history = *record.mutable_history();
    for (const Scalar& scalar : point.scalars) {
      AddItem(scalar.name, NumberJson(scalar.value), history.add_item());
      newest_[std::string(scalar.name)] = NumberJson(scalar.value);
    }
    // Rows of W&B are numbered without gaps or steps back; ours is a column that charts can take.
    AddItem("step", absl::StrCat(point.step), history.add_item());
    AddItem("_step", absl::StrCat(rows_), history.add_item());
    AddItem("_timestamp", NumberJson(unix_seconds), history.add_item());
    AddItem("_runtime", NumberJson(unix_seconds - static_cast<double>(begin_unix_ms_) / 1000),
            history.add_item());
    history.mutable_step()->set_num(rows_++);
    return Write(&record);
  }

  absl::Status Finish(const v1::Job& job) override {
    wandb::Record summary;
    for (const auto& [name, json] : newest_) {
      AddItem(name, json, summary.mutable_summary()->add_update());
    }
    RETURN_IF_ERROR(Write(&summary));
    wandb::Record end;
    end.mutable_exit()->set_exit_code(job.state() == v1::SUCCEEDED ? 0 : 1);
    end.mutable_exit()->set_runtime(
        static_cast<int32_t>((job.finished_unix_ms() - job.submitted_unix_ms()) / 1000));
    RETURN_IF_ERROR(Write(&end));
    return blocks_.Sync();
  }

 private:
  absl::Status Write(wandb::Record* record) {
    record->set_num(++records_);
    return blocks_.Write(record->SerializeAsString());
  }

  BlockWriter blocks_;
  int64_t begin_unix_ms_ = 0;
  int64_t records_ = 0;
  int64_t rows_ = 0;
  std::map<std::string, std::string> newest_;  // JSON by name
};

// W&B takes letters, digits and a few signs, and its own are eight long.
std::string RunId(const v1::Job& job) {
  return absl::StrCat(absl::Hex(job.submitted_unix_ms(), absl::kZeroPad8), getpid());
}

std::string StampOf(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d_%H%M%S", &parts);
  return stamp;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunLog>> OpenWandb(const std::string& folder, const v1::Job& job) {
  const std::string id = RunId(job);
  const std::string run =
      absl::StrCat(folder, "/wandb/offline-run-", StampOf(job.submitted_unix_ms()), "-", id);
  RETURN_IF_ERROR(MakeDirectories(run));
  const std::string path = absl::StrCat(run, "/run-", id, ".wandb");
  ASSIGN_OR_RETURN(UniqueFd file, CreateFile(path));
  auto log = std::make_unique<WandbLog>(path, std::move(file));
  RETURN_IF_ERROR(log->Begin(job, id));
  return log;
}

}  // namespace terrace
