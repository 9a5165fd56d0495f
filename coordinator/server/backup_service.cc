// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/backup_service.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "coordinator/server/stream_writer.h"
#include "proto/v1/backup.grpc.pb.h"

namespace terrace {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

std::string CopyPath(const std::string& directory) { return directory + "/backup.tmp"; }

// Copies the store a piece at a time between what else the loop has to do, then sends the copy.
class BackupStream final : public StreamWriter<v1::BackupChunk> {
 public:
  // `busy` is the service's: whether one is under way.
  static BackupStream* Start(Loop& loop, SqliteStore& store, const std::string& directory,
                             bool* busy) {
    auto stream = std::shared_ptr<BackupStream>(new BackupStream(loop, directory, busy));
    stream->KeepAlive(stream);
    loop.Post([stream, &store] { stream->Begin(store); });
    return stream.get();
  }

 private:
  BackupStream(Loop& loop, const std::string& directory, bool* busy)
      : StreamWriter(loop), loop_(loop), path_(CopyPath(directory)), busy_(busy) {}

  void Begin(SqliteStore& store) {
    if (*busy_) {
      return End(absl::ResourceExhaustedError(
          "another backup is being made, and a coordinator makes one at a time: try again when it "
          "has ended"));
    }
    *busy_ = holds_ = true;
    auto copy = store.BeginCopy(path_);
    if (!copy.ok()) return End(copy.status());
    copy_ = *std::move(copy);
    CopyMore();
  }

  void CopyMore() {
    if (is_over_) return;  // whoever asked has gone
    const absl::StatusOr<bool> whole = copy_->Step();
    if (!whole.ok()) return End(whole.status());
    if (*whole) return Send();
    loop_.Post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) static_cast<BackupStream&>(*self).CopyMore();
    });
  }

  void Send() {
    copy_.reset();
    std::error_code error;
    v1::BackupChunk first;
    first.set_total_bytes(static_cast<int64_t>(std::filesystem::file_size(path_, error)));
    file_.open(path_, std::ios::binary);
    if (error || !file_) return End(absl::InternalError(absl::StrCat(path_, " cannot be read")));
    ready_ = true;
    Push(std::move(first));
    Advance();
  }

  void Refill() override {
    if (!ready_) return;
    std::string data(kChunkBytes, '\0');
    file_.read(data.data(), static_cast<std::streamsize>(data.size()));
    data.resize(static_cast<size_t>(file_.gcount()));
    if (file_.bad()) return End(absl::InternalError(absl::StrCat(path_, " cannot be read")));
    if (data.empty()) return End(absl::OkStatus());
    v1::BackupChunk chunk;
    chunk.set_data(std::move(data));
    Push(std::move(chunk));
  }

  void Ended() override {
    is_over_ = true;
    Forget();
  }

  // The copy goes, and the next may be made.
  void Forget() {
    if (!std::exchange(holds_, false)) return;
    copy_.reset();
    file_.close();
    std::error_code error;
    std::filesystem::remove(path_, error);
    if (error) log::Warn("the backup that was sent stays at ", path_, ": ", error.message());
    *busy_ = false;
  }

  Loop& loop_;
  const std::string path_;
  bool* const busy_;
  bool holds_ = false;    // what `busy_` says is this one
  bool is_over_ = false;  // the stream
  bool ready_ = false;    // the copy is whole
  std::unique_ptr<StoreCopy> copy_;
  std::ifstream file_;
};

class BackupServiceImpl final : public v1::BackupService::CallbackService {
 public:
  BackupServiceImpl(Loop& loop, SqliteStore& store, const CallGuard& guard, std::string directory)
      : loop_(loop), store_(store), guard_(guard), directory_(std::move(directory)) {
    std::error_code error;  // of a coordinator that was killed while it made one
    std::filesystem::remove(CopyPath(directory_), error);
  }

  grpc::ServerWriteReactor<v1::BackupChunk>* Backup(grpc::CallbackServerContext* context,
                                                    const v1::BackupRequest*) override {
    // All that is stored leaves: that it was asked for is in the audit log.
    const std::shared_ptr<GuardedCall> call = guard_.Begin("Backup", *context);
    guard_.End(*call, absl::OkStatus());
    return BackupStream::Start(loop_, store_, directory_, &busy_);
  }

 private:
  Loop& loop_;
  SqliteStore& store_;
  const CallGuard& guard_;
  const std::string directory_;
  bool busy_ = false;  // used on the loop
};

}  // namespace

std::unique_ptr<grpc::Service> MakeBackupService(Loop& loop, SqliteStore& store,
                                                 const CallGuard& guard, std::string directory) {
  return std::make_unique<BackupServiceImpl>(loop, store, guard, std::move(directory));
}

}  // namespace terrace
