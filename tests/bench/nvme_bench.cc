// The NVMe tier against fio: bandwidth with the same file system, size, block size and depth, and
// CPU seconds for each GiB, of every engine. All take turns within a round, in an order that moves
// on from round to round; medians of the rounds are printed as a table. Run by hand, on a folder
// with 9 GiB free; results/nvme-*.md keeps what was measured.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "worker/memory/nvme/nvme_file.h"

namespace terrace {
namespace {

constexpr int64_t kFileBytes = int64_t{1} << 30;
constexpr int64_t kMemoryBytes = int64_t{64} << 20;
constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int kDepth = 8;
constexpr int kSampleSeconds = 1;  // of each contestant, direction and round
constexpr double kGiB = 1 << 30;

struct Sample {
  double gib_per_second = 0;
  double cpu_seconds_per_gib = 0;
};

struct Contestant {
  std::string name;
  std::function<Sample(NvmeDirection)> run;
};

double CpuSeconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return time.tv_sec + 1e-6 * time.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

Sample RunFio(const std::string& file, NvmeDirection direction) {
  const std::string command = absl::StrFormat(
      "fio --name=nvme --thread --filename=%s --rw=%s --bs=%d --iodepth=%d --size=%d --direct=1 "
      "--overwrite=1 --ioengine=io_uring --fixedbufs=1 --registerfiles=1 --scramble_buffers=0 "
      "--gtod_reduce=1 --time_based --runtime=%d --output-format=json",
      file, direction == NvmeDirection::kRead ? "read" : "write", kBlockBytes, kDepth, kFileBytes,
      kSampleSeconds);
  std::string output;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::array<char, 4096> chunk;
  while (const size_t count = std::fread(chunk.data(), 1, chunk.size(), pipe)) {
    output.append(chunk.data(), count);
  }
  if (::pclose(pipe) != 0) return {};
  const auto report = nlohmann::json::parse(output, nullptr, false);
  if (report.is_discarded()) return {};
  const auto& job = report["jobs"][0];
  const auto& data = job[direction == NvmeDirection::kRead ? "read" : "write"];
  const double seconds = data["runtime"].get<double>() / 1000;
  const double cpu = (job["usr_cpu"].get<double>() + job["sys_cpu"].get<double>()) / 100;
  const double gib = data["io_bytes"].get<double>() / kGiB;
  return {.gib_per_second = gib / seconds, .cpu_seconds_per_gib = cpu * seconds / gib};
}

// The file from its start, over and over, in transfers of `transfer_bytes`, through `memory`.
Sample RunQueue(NvmeQueue& queue, std::span<std::byte> memory, int64_t transfer_bytes,
                NvmeDirection direction) {
  std::vector<NvmePiece> pieces;
  for (int64_t offset = 0; offset < kFileBytes; offset += kBlockBytes) {
    pieces.push_back(
        {.offset = offset, .memory = &memory[offset % memory.size()], .bytes = kBlockBytes});
  }
  const auto count = static_cast<size_t>(transfer_bytes / kBlockBytes);
  const double cpu = CpuSeconds();
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::duration<double> took{0};
  double gib = 0;
  for (size_t first = 0; took.count() < kSampleSeconds; first = (first + count) % pieces.size()) {
    Check(queue.Transfer(direction, {&pieces[first], count}));
    gib += static_cast<double>(transfer_bytes) / kGiB;
    took = std::chrono::steady_clock::now() - begin;
  }
  return {.gib_per_second = gib / took.count(), .cpu_seconds_per_gib = (CpuSeconds() - cpu) / gib};
}

struct Mode {
  std::string name;
  std::string engine;
  bool registered = false;
  bool verify = false;
  int64_t transfer_bytes = 256 << 20;
  bool like_fio = false;  // as many bytes of memory as are in flight, on pages of 4 KiB
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

using Samples = std::map<std::pair<std::string, NvmeDirection>, std::vector<Sample>>;

void PrintTable(const std::vector<Contestant>& contestants, const Samples& samples) {
  std::cout << "| | read GiB/s | of fio | CPU s/GiB | write GiB/s | of fio | CPU s/GiB |\n"
               "|---|---|---|---|---|---|---|\n";
  const auto median = [&](const std::string& name, NvmeDirection direction, bool cpu) {
    std::vector<double> values;
    for (const Sample& sample : samples.at({name, direction})) {
      values.push_back(cpu ? sample.cpu_seconds_per_gib : sample.gib_per_second);
    }
    return Median(std::move(values));
  };
  // Of the rounds' ratios, so that a slow minute meets both sides.
  const auto ratio = [&](const std::string& name, NvmeDirection direction) {
    std::vector<double> values;
    const auto& ours = samples.at({name, direction});
    const auto& theirs = samples.at({contestants[0].name, direction});
    for (size_t i = 0; i < ours.size(); ++i) {
      values.push_back(ours[i].gib_per_second / theirs[i].gib_per_second);
    }
    return Median(std::move(values));
  };
  for (const Contestant& contestant : contestants) {
    std::cout << "| " << contestant.name;
    for (const NvmeDirection direction : {NvmeDirection::kRead, NvmeDirection::kWrite}) {
      std::cout << absl::StrFormat(
          " | %.2f | %.2f | %.3f", median(contestant.name, direction, false),
          ratio(contestant.name, direction), median(contestant.name, direction, true));
    }
    std::cout << " |\n";
  }
}

Arena MakeMemory(int page_advice) {
  auto arena = Arena::Reserve("terrace-nvme-bench", kMemoryBytes);
  Check(arena.status());
  ::madvise(arena->data(), kMemoryBytes, page_advice);
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < kMemoryBytes; i += 8) {
    const uint64_t value = random();
    std::memcpy(arena->data() + i, &value, sizeof(value));
  }
  return std::move(arena).value();
}

int Main(const std::string& folder, int rounds) {
  const std::string fio_file = folder + "/nvme_bench_fio";
  std::vector<Contestant> contestants = {
      {"fio", [&](NvmeDirection direction) { return RunFio(fio_file, direction); }}};
  const Arena huge = MakeMemory(MADV_HUGEPAGE);
  const Arena small = MakeMemory(MADV_NOHUGEPAGE);
  NvmeOptions options = {.paths = {folder}, .name = "bench", .bytes = kFileBytes};
  options.block_bytes = kBlockBytes;
  options.queue_depth = kDepth;
  std::vector<std::unique_ptr<NvmeFile>> files;
  std::vector<std::unique_ptr<NvmeQueue>> queues;
  // Space that was never written costs extra once: each file is written before the first round.
  for (const Mode& mode :
       {Mode{"io_uring, registered", "io_uring", true},
        Mode{"io_uring, registered, transfers of 16 MiB", "io_uring", true, false, 16 << 20},
        Mode{"io_uring, unregistered", "io_uring"}, Mode{"threads", "threads"},
        Mode{"io_uring, registered, verify", "io_uring", true, true},
        Mode{"io_uring, registered, fio's memory", "io_uring", true, false, 256 << 20, true},
        Mode{"io_uring, unregistered, fio's memory", "io_uring", false, false, 256 << 20, true}}) {
    options.verify = mode.verify;
    options.engine = mode.engine;
    auto file = NvmeFile::Create(options);
    Check(file.status());
    files.push_back(std::move(file).value());
    auto queue = files.back()->NewQueue();
    Check(queue.status());
    queues.push_back(std::move(queue).value());
    NvmeQueue* const raw = queues.back().get();
    const std::span<std::byte> memory =
        mode.like_fio ? std::span(small.data(), kDepth * kBlockBytes)
                      : std::span(huge.data(), static_cast<size_t>(kMemoryBytes));
    if (mode.registered) raw->RegisterMemory(memory);
    std::cerr << mode.name << ": " << raw->description() << "\n";
    RunQueue(*raw, memory, kFileBytes, NvmeDirection::kWrite);
    contestants.push_back({mode.name, [raw, memory, mode](NvmeDirection direction) {
                             return RunQueue(*raw, memory, mode.transfer_bytes, direction);
                           }});
  }
  if (RunFio(fio_file, NvmeDirection::kWrite).gib_per_second == 0) {
    std::cerr << "fio does not run (apt-get install fio): no comparison\n";
    contestants.erase(contestants.begin());
  }
  Samples samples;
  for (int round = 0; round < rounds; ++round) {
    for (const NvmeDirection direction : {NvmeDirection::kRead, NvmeDirection::kWrite}) {
      for (size_t i = 0; i < contestants.size(); ++i) {
        const Contestant& contestant = contestants[(i + round) % contestants.size()];
        samples[{contestant.name, direction}].push_back(contestant.run(direction));
      }
    }
  }
  std::filesystem::remove(fio_file);
  PrintTable(contestants, samples);
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: nvme_bench FOLDER [rounds, default 5]\n";
    return 2;
  }
  return terrace::Main(argv[1], argc > 2 ? std::max(1, std::atoi(argv[2])) : 5);
}
