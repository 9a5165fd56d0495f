// Event files: each event in a TFRecord, its length and its bytes each followed by a masked CRC-32C
// (tensorflow/core/lib/io/record_writer.h).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "client/run_log/checksum.h"
#include "client/run_log/run_log.h"
#include "client/run_log/scalars.h"
#include "client/run_log/tensorboard.pb.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

template <typename Number>
std::string BytesOf(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

std::string MaskedCheck(std::string_view bytes) {
  return BytesOf<uint32_t>(std::rotr(Crc32c(bytes), 15) + 0xa282ead8u);
}

class TensorBoardLog final : public RunLog {
 public:
  TensorBoardLog(std::string path, UniqueFd file)
      : path_(std::move(path)), file_(std::move(file)) {}

  absl::Status Begin(int64_t unix_ms) {
    tensorboard::Event first;
    first.set_wall_time(static_cast<double>(unix_ms) / 1000);
    first.set_file_version("brain.Event:2");
    return Write(first);
  }

  absl::Status Add(const v1::JobEvent& event) override {
    const Point point = PointOf(event);
    if (point.scalars.empty()) return absl::OkStatus();
    tensorboard::Event record;
    record.set_wall_time(static_cast<double>(event.unix_ms()) / 1000);
    record.set_step(point.step);
    for (const Scalar& scalar : point.scalars) {
      tensorboard::Scalar* value = record.mutable_summary()->add_value();
      value->set_tag(std::string(scalar.name));
      value->set_simple_value(static_cast<float>(scalar.value));
    }
    return Write(record);
  }
  absl::Status Finish(const v1::Job&) override { return SyncFile(file_, path_); }

 private:
  absl::Status Write(const tensorboard::Event& event) {
    const std::string data = event.SerializeAsString();
    const std::string length = BytesOf<uint64_t>(data.size());
    const std::string record = absl::StrCat(length, MaskedCheck(length), data, MaskedCheck(data));
    return WriteAll(file_, std::as_bytes(std::span(record)), path_);
  }

  const std::string path_;
  const UniqueFd file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RunLog>> OpenTensorBoard(const std::string& folder,
                                                        const v1::Job& job) {
  RETURN_IF_ERROR(MakeDirectories(folder));
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  // TensorBoard reads files with this word in their names, in the order of their names.
  const std::string path = absl::StrCat(folder, "/events.out.tfevents.",
                                        absl::StrFormat("%010d", job.submitted_unix_ms() / 1000),
                                        ".", host, ".", getpid(), ".", job.id());
  ASSIGN_OR_RETURN(UniqueFd file, CreateFile(path));
  auto log = std::make_unique<TensorBoardLog>(path, std::move(file));
  RETURN_IF_ERROR(log->Begin(job.submitted_unix_ms()));
  return log;
}

}  // namespace terrace
