// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#include <omp.h>

#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_engine.h"

namespace terrace::kernels::cpu {
namespace {

struct Range {
  int64_t begin = 0, end = 0;
};

// Piece `index` of `count` nearly equal pieces of [0, size).
Range Piece(int64_t size, int64_t index, int64_t count) {
  return {size * index / count, size * (index + 1) / count};
}

// One product on one engine: where everything lies in the workspace, and what each thread does.
class BlockedGemm {
 public:
  BlockedGemm(const GemmEngine& engine, const Gemm& gemm, std::byte* workspace, int threads)
      : engine_(engine),
        gemm_(gemm),
        cut_(engine.arithmetic, gemm.m, gemm.n, gemm.k, threads),
        a_{gemm.a.data, gemm.a.dtype, gemm.a.row_stride, !gemm.transpose_a, gemm.m, gemm.k},
        b_{gemm.b.data, gemm.b.dtype, gemm.b.row_stride, gemm.transpose_b, gemm.n, gemm.k},
        fetch_c_(gemm.m * gemm.n * SizeOf(gemm.c.dtype) > kCachedBytes),
        shared_(workspace),
        all_sums_(reinterpret_cast<float*>(shared_ + cut_.SharedBuffers() * cut_.SharedBytes())),
        threads_(reinterpret_cast<std::byte*>(all_sums_) + cut_.AllSumsBytes()) {}

  void RunThread(int64_t index, int64_t count) const {
    const Share share = ShareOf(index, count);
    Scratch scratch(cut_, threads_ + index * cut_.ThreadBytes());
    if (engine_.begin_thread != nullptr) engine_.begin_thread();
    BlockJob job;
    int64_t group = 0;
    for (int64_t first = 0; first < cut_.chunks; first += cut_.chunks_at_once, ++group) {
      const Range chunks{first, std::min(cut_.chunks, first + cut_.chunks_at_once)};
      std::byte* shared = shared_ + group % cut_.SharedBuffers() * cut_.SharedBytes();
      // With one buffer everybody must be done with it; with two, the barrier of the group before
      // said so.
      if (group > 0 && cut_.SharedBuffers() == 1) Barrier(count);
      PackShared(chunks, index, count, shared);
      Barrier(count);
      MultiplyGroup(chunks, share, shared, &scratch, &job);
    }
    engine_.finish(job);
    if (engine_.end_thread != nullptr) engine_.end_thread();
  }

 private:
  struct Share {
    Range own;     // private panels
    Range others;  // shared panels
  };
  struct Scratch {
    Scratch(const GemmBlocking& cut, std::byte* memory)
        : panels(memory),
          sums(reinterpret_cast<float*>(memory + cut.PrivateBytes())),
          products(sums + cut.panels_at_once * kBlock) {}
    std::byte* panels;
    float* sums;
    float* products;  // two blocks, in turns
    int turn = 0;
  };
  static constexpr int64_t kBlock = kGemmPanel * kGemmPanel;
  static constexpr int64_t kCachedBytes = 8 << 20;  // a larger C is likely in no cache
  static constexpr int64_t kRowsAtATime = 64;       // a multiple of every arithmetic's step

  static void Barrier(int64_t count) {
    if (count == 1) return;  // perhaps inside somebody else's parallel region
#pragma omp barrier
  }

  // Threads that find no private panel left divide the shared side.
  Share ShareOf(int64_t index, int64_t count) const {
    const int64_t across = std::min(count, cut_.private_panels);
    const int64_t along = std::min(count / across, cut_.shared_panels);
    if (index >= across * along) return {};
    return {Piece(cut_.private_panels, index % across, across),
            Piece(cut_.shared_panels, index / across, along)};
  }

  int64_t ChunkK(int64_t chunk) const {
    const int64_t left = gemm_.k - chunk * cut_.chunk;
    return std::clamp(CeilDiv(left, engine_.arithmetic.step) * engine_.arithmetic.step, int64_t{0},
                      cut_.chunk);
  }

  std::byte* PanelAt(std::byte* panels, int64_t panel, int64_t chunk_in_group) const {
    return panels + (panel * cut_.chunks_at_once + chunk_in_group) * cut_.panel_chunk_bytes;
  }

  // K [k.begin, k.end) within `chunk` of some panels of one side, to where `chunk_in_group` of the
  // first of them lies.
  void PackPanels(bool a_side, Range panels, int64_t chunk, Range k, std::byte* to) const {
    const PackSource& source = a_side ? a_ : b_;
    const auto pack = a_side ? engine_.pack_a : engine_.pack_b;
    const int64_t panel_bytes = cut_.chunks_at_once * cut_.panel_chunk_bytes;
    // Where a stored row holds one K of every line, neighbouring panels are neighbours in memory: a
    // few rows of all panels at a time. Else a panel at a time.
    const int64_t slice = source.k_contiguous ? cut_.chunk : kRowsAtATime;
    for (int64_t first = k.begin; first < k.end; first += slice) {
      const int64_t size = std::min(slice, k.end - first);
      for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        pack(source, {panel * kGemmPanel, chunk * cut_.chunk + first, size},
             to + (panel - panels.begin) * panel_bytes +
                 first * kGemmPanel * engine_.arithmetic.element_bytes);
      }
    }
  }

  // Every thread packs a part of the shared panels: some panels, or some rows of K of all panels.
  void PackShared(Range chunks, int64_t index, int64_t count, std::byte* shared) const {
    const bool a_side = !cut_.rows_private;
    const bool by_panels = (a_side ? a_ : b_).k_contiguous;
    for (int64_t c = chunks.begin; c < chunks.end; ++c) {
      const Range panels =
          by_panels ? Piece(cut_.shared_panels, index, count) : Range{0, cut_.shared_panels};
      const int64_t slices = CeilDiv(ChunkK(c), kRowsAtATime);
      Range k{0, ChunkK(c)};
      if (!by_panels) {
        const Range mine = Piece(slices, index, count);
        k = {mine.begin * kRowsAtATime, std::min(k.end, mine.end * kRowsAtATime)};
      }
      PackPanels(a_side, panels, c, k, PanelAt(shared, panels.begin, c - chunks.begin));
    }
  }

  void MultiplyGroup(Range chunks, const Share& share, std::byte* shared, Scratch* scratch,
                     BlockJob* job) const {
    const int64_t own = share.own.end - share.own.begin;
    const int64_t turns = CeilDiv(own, cut_.panels_at_once);
    for (int64_t turn = 0; turn < turns; ++turn) {
      const Range piece = Piece(own, turn, turns);
      const Range panels{share.own.begin + piece.begin, share.own.begin + piece.end};
      for (int64_t c = chunks.begin; c < chunks.end; ++c) {
        PackPanels(cut_.rows_private, panels, c, {0, ChunkK(c)},
                   PanelAt(scratch->panels, 0, c - chunks.begin));
      }
      for (int64_t other = share.others.begin; other < share.others.end; ++other) {
        for (int64_t c = chunks.begin; c < chunks.end; ++c) {
          const std::byte* resident = PanelAt(shared, other, c - chunks.begin);
          for (int64_t p = panels.begin; p < panels.end; ++p) {
            const int64_t local = p - panels.begin;
            MultiplyBlock(PanelAt(scratch->panels, local, c - chunks.begin), resident, p, other, c,
                          cut_.keeps_all_sums()
                              ? all_sums_ + (p * cut_.shared_panels + other) * kBlock
                              : scratch->sums + local * kBlock,
                          scratch, job);
          }
        }
      }
    }
  }

  void MultiplyBlock(const std::byte* own, const std::byte* resident, int64_t own_panel,
                     int64_t other_panel, int64_t chunk, float* sums, Scratch* scratch,
                     BlockJob* job) const {
    const bool rows_private = cut_.rows_private;
    const bool first = chunk == 0, last = chunk + 1 == cut_.chunks;
    float* block = first && !last ? sums : scratch->products + (scratch->turn ^= 1) * kBlock;
    engine_.multiply({.a = rows_private ? own : resident,
                      .b = rows_private ? resident : own,
                      .k = ChunkK(chunk),
                      .stream_a = rows_private,
                      .block = block},
                     *job);
    if (first && !last) {
      *job = {};
      return;
    }
    *job = {.product = block,
            .sums = first ? nullptr : sums,
            .last = last,
            .gemm = &gemm_,
            .row = (rows_private ? own_panel : other_panel) * kGemmPanel,
            .column = (rows_private ? other_panel : own_panel) * kGemmPanel,
            .next_rows = rows_private ? kGemmPanel : 0,
            .next_columns = rows_private ? 0 : kGemmPanel,
            .fetch_c = fetch_c_};
  }

  const GemmEngine& engine_;
  const Gemm& gemm_;
  const GemmBlocking cut_;
  const PackSource a_, b_;
  const bool fetch_c_;
  std::byte* const shared_;
  float* const all_sums_;
  std::byte* const threads_;
};

// Waking a thread costs about as much as this many floating-point operations.
constexpr int64_t kFlopsWorthAThread = 8 << 20;

GemmEngine EngineOf(GemmPath path, const Gemm& gemm) {
  const MatmulPrecision precision = gemm.precision;
  // The other engines pack bf16 parts, which f16 is not.
  const bool half = gemm.a.dtype == DType::kF16 || gemm.b.dtype == DType::kF16;
  if (half || precision == MatmulPrecision::kF16) return VectorGemmEngine(precision);
  if (path == GemmPath::kAmx) return AmxGemmEngine(precision);
  const bool bf16 = precision == MatmulPrecision::kBF16;
  return path == GemmPath::kBF16Vectors && bf16 ? BF16GemmEngine() : VectorGemmEngine(precision);
}

}  // namespace

Status PrepareGemm(int threads) {
  AmxReady();
  // The team of the first product would otherwise be made during it.
#pragma omp parallel num_threads(threads)
  {}
  return {};
}

bool HasGemmPath(GemmPath path) {
  switch (path) {
    case GemmPath::kAmx:
      return AmxReady();
    case GemmPath::kBF16Vectors:
      return HasBF16Vectors();
    case GemmPath::kVectors:
      return true;
  }
  return false;
}

Status RunGemmOn(GemmPath path, const Gemm& gemm, const Context& context) {
  const GemmEngine engine = EngineOf(path, gemm);
  const BlockedGemm blocked(engine, gemm, context.workspace, context.threads);
  const int64_t worth = 2 * gemm.m * gemm.n * gemm.k / kFlopsWorthAThread;
  const int threads = static_cast<int>(std::clamp<int64_t>(worth, 1, context.threads));
  if (threads == 1) {
    blocked.RunThread(0, 1);
    return {};
  }
#pragma omp parallel num_threads(threads)
  blocked.RunThread(omp_get_thread_num(), omp_get_num_threads());
  return {};
}

Status RunGemm(const Gemm& gemm, const Context& context) {
  if (HasFewRows(gemm)) return RunGemv(gemm, context);
  if (AmxReady()) return RunGemmOn(GemmPath::kAmx, gemm, context);
  return RunGemmOn(HasBF16Vectors() ? GemmPath::kBF16Vectors : GemmPath::kVectors, gemm, context);
}

}  // namespace terrace::kernels::cpu
