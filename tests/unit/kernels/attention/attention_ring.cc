// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/attention/attention_ring.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/attention_workspace.h"

namespace terrace::kernels {
namespace {

constexpr int64_t kSpare = 3;  // columns of each row that belong to nobody
constexpr uint8_t kPoison = 0xff;

// [rows, columns + kSpare] of f32 or bf16, all NaN.
class Rows {
 public:
  Rows() = default;
  Rows(int64_t rows, int64_t columns, DType dtype)
      : rows_(rows),
        columns_(columns),
        dtype_(dtype),
        bytes_(rows * stride() * SizeOf(dtype), kPoison) {}

  TensorView View(int64_t first, int64_t heads, int64_t width) {
    TensorView view;
    view.dtype = dtype_;
    view.dims = 3;
    view.size = {rows_, heads, width};
    view.row_stride = stride();
    view.data = bytes_.data() + first * SizeOf(dtype_);
    return view;
  }
  double Get(int64_t row, int64_t column) const {
    uint32_t bits = 0;
    std::memcpy(&bits, At(row, column), SizeOf(dtype_));
    return std::bit_cast<float>(dtype_ == DType::kF32 ? bits : bits << 16);
  }
  void Set(int64_t row, int64_t column, double value) {
    uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    if (dtype_ == DType::kBF16) bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    std::memcpy(const_cast<uint8_t*>(At(row, column)), &bits, SizeOf(dtype_));
  }
  bool SpareIsUntouched() const {
    for (int64_t row = 0; row < rows_; ++row) {
      for (const uint8_t* at = At(row, columns_); at < At(row, stride()); ++at) {
        if (*at != kPoison) return false;
      }
    }
    return true;
  }

 private:
  int64_t stride() const { return columns_ + kSpare; }
  const uint8_t* At(int64_t row, int64_t column) const {
    return bytes_.data() + (row * stride() + column) * SizeOf(dtype_);
  }

  int64_t rows_ = 0, columns_ = 0;
  DType dtype_ = DType::kF32;
  std::vector<uint8_t> bytes_;
};

// What one rank holds.
struct Rank {
  Rows fused;          // q | k | v
  Rows o, o_act, d_o;  // o in f32, then in the activations' type
  std::vector<float> lse;
  Rows dq, dk, dv;
};

class Simulation {
 public:
  Simulation(const AttentionCase& whole, const Ring& ring, const cpu::AttentionEngine& engine,
             int threads)
      : whole_(whole),
        shape_(whole.shape),
        ring_(ring),
        engine_(engine),
        threads_(threads),
        share_(shape_.sequence / ring.ranks),
        queries_(shape_.heads * shape_.head_dim),
        keys_(shape_.kv_heads * shape_.head_dim),
        ranks_(ring.ranks) {
    for (int64_t r = 0; r < ring.ranks; ++r) Deal(r);
  }

  AttentionValues Run() {
    for (int64_t step = 0; step < ring_.ranks; ++step) {
      for (int64_t r = 0; r < ring_.ranks; ++r) Forward(r, step);
    }
    for (Rank& rank : ranks_) {
      for (int64_t t = 0; t < tokens(); ++t) {
        for (int64_t c = 0; c < queries_; ++c) rank.o_act.Set(t, c, rank.o.Get(t, c));
      }
    }
    for (int64_t step = 0; step < ring_.ranks; ++step) {
      for (int64_t r = 0; r < ring_.ranks; ++r) Backward(r, step);
    }
    return Collect();
  }

 private:
  int64_t tokens() const { return shape_.batch * share_; }

  TokenShare Share(int64_t rank) const {
    return {.ranks = ring_.ranks, .index = rank, .zigzag = ring_.zigzag};
  }
  // The row among all tokens of row t of a rank.
  int64_t WholeRow(int64_t rank, int64_t t) const {
    return t / share_ * shape_.sequence + Share(rank).Position(t, share_);
  }

  void Deal(int64_t r) {
    Rank& rank = ranks_[r];
    rank.fused = Rows(tokens(), queries_ + 2 * keys_, shape_.dtype);
    rank.o = Rows(tokens(), queries_, DType::kF32);
    rank.o_act = Rows(tokens(), queries_, shape_.dtype);
    rank.d_o = Rows(tokens(), queries_, shape_.dtype);
    rank.lse.assign(tokens() * shape_.heads, NAN);
    rank.dq = Rows(tokens(), queries_, DType::kF32);
    rank.dk = rank.dv = Rows(tokens(), keys_, DType::kF32);
    for (int64_t t = 0; t < tokens(); ++t) {
      const int64_t from = WholeRow(r, t);
      for (int64_t c = 0; c < queries_; ++c) {
        rank.fused.Set(t, c, whole_.q[from * queries_ + c]);
        rank.d_o.Set(t, c, whole_.d_o[from * queries_ + c]);
      }
      for (int64_t c = 0; c < keys_; ++c) {
        rank.fused.Set(t, queries_ + c, whole_.k[from * keys_ + c]);
        rank.fused.Set(t, queries_ + keys_ + c, whole_.v[from * keys_ + c]);
      }
    }
  }

  TensorView Q(Rows& rows) const { return rows.View(0, shape_.heads, shape_.head_dim); }
  TensorView K(Rows& rows, int64_t first) const {
    return rows.View(first, shape_.kv_heads, shape_.head_dim);
  }
  TensorView Lse(Rank& rank) const {
    TensorView view;
    view.dims = 3;
    view.size = {shape_.batch, shape_.heads, share_};
    view.row_stride = shape_.heads * share_;
    view.data = rank.lse.data();
    return view;
  }
  AttentionBlockAttrs Attrs(int64_t rank, int64_t step) const {
    return {.sequence = share_,
            .window = shape_.window,
            .scale = whole_.attrs.scale,
            .precision = shape_.precision,
            .context = Share(rank),
            .step = step,
            .accumulate = step > 0,
            .accumulate_keys = step > 0};
  }

  template <typename Kernel>
  void Launch(Op op, const AttentionBlockAttrs& attrs, const std::vector<TensorView>& operands,
              const Kernel& kernel) const {
    const std::vector<TensorShape> shapes(operands.begin(), operands.end());
    ASSERT_EQ(CheckShapes(op, attrs, shapes), "");
    const int64_t bytes = WorkspaceBytes(op, attrs, shapes, threads_);
    constexpr int64_t kFence = 64;
    const std::unique_ptr<std::byte, decltype(&std::free)> memory(
        static_cast<std::byte*>(std::aligned_alloc(64, bytes + kFence)), std::free);
    std::memset(memory.get(), kPoison, bytes + kFence);
    const Context context{.threads = threads_, .workspace = memory.get(), .workspace_bytes = bytes};
    EXPECT_EQ(kernel(engine_, attrs, operands, context).message, "");
    for (int64_t i = 0; i < kFence; ++i) {
      ASSERT_EQ(memory.get()[bytes + i], std::byte{kPoison}) << "behind the workspace";
    }
  }

  void Forward(int64_t r, int64_t step) {
    Rank& rank = ranks_[r];
    Rank& other = ranks_[(r - step + ring_.ranks) % ring_.ranks];
    Launch(Op::kAttentionBlock, Attrs(r, step),
           {Q(rank.fused), K(other.fused, queries_), K(other.fused, queries_ + keys_), Q(rank.o),
            Lse(rank), TensorView(), TensorView()},
           cpu::RunAttentionBlock);
    EXPECT_TRUE(rank.o.SpareIsUntouched());
  }

  void Backward(int64_t r, int64_t step) {
    Rank& rank = ranks_[r];
    Rank& other = ranks_[(r - step + ring_.ranks) % ring_.ranks];
    Launch(Op::kAttentionBlockGrad, Attrs(r, step),
           {Q(rank.fused), K(other.fused, queries_), K(other.fused, queries_ + keys_),
            Q(rank.o_act), Lse(rank), Q(rank.d_o), Q(rank.dq), K(other.dk, 0), K(other.dv, 0),
            TensorView(), TensorView()},
           cpu::RunAttentionBlockGrad);
    EXPECT_TRUE(rank.dq.SpareIsUntouched() && other.dk.SpareIsUntouched() &&
                other.dv.SpareIsUntouched());
  }

  AttentionValues Collect() const {
    AttentionValues values;
    values.o.resize(whole_.q.size());
    values.dq.resize(whole_.q.size());
    values.dk.resize(whole_.k.size());
    values.dv.resize(whole_.v.size());
    values.lse.resize(shape_.batch * shape_.heads * shape_.sequence);
    for (int64_t r = 0; r < ring_.ranks; ++r) {
      const Rank& rank = ranks_[r];
      for (int64_t t = 0; t < tokens(); ++t) {
        const int64_t to = WholeRow(r, t), b = t / share_;
        for (int64_t c = 0; c < queries_; ++c) {
          values.o[to * queries_ + c] = rank.o.Get(t, c);
          values.dq[to * queries_ + c] = rank.dq.Get(t, c);
        }
        for (int64_t c = 0; c < keys_; ++c) {
          values.dk[to * keys_ + c] = rank.dk.Get(t, c);
          values.dv[to * keys_ + c] = rank.dv.Get(t, c);
        }
        for (int64_t h = 0; h < shape_.heads; ++h) {
          values.lse[(b * shape_.heads + h) * shape_.sequence + to % shape_.sequence] =
              rank.lse[(b * shape_.heads + h) * share_ + t % share_];
        }
      }
    }
    return values;
  }

  const AttentionCase& whole_;
  const AttentionShape& shape_;
  const Ring ring_;
  const cpu::AttentionEngine engine_;
  const int threads_;
  const int64_t share_, queries_, keys_;  // tokens of a rank's sequence; columns
  std::vector<Rank> ranks_;
};

}  // namespace

AttentionValues RunRing(const AttentionCase& whole, const Ring& ring,
                        const cpu::AttentionEngine& engine, int threads) {
  return Simulation(whole, ring, engine, threads).Run();
}

AttentionValues RunRing(const AttentionCase& whole, const Ring& ring, int threads) {
  return RunRing(whole, ring, cpu::FindAttentionEngine(whole.shape.precision, whole.shape.dtype),
                 threads);
}

}  // namespace terrace::kernels
