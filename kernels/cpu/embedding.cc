// Token and position embeddings. The gradient is split by columns, not by rows: each column of the
// tables is summed by one thread in token order, so the result is the same for any number of
// threads and needs no atomics. For a table in 16 bits the rows of one token are summed in f32 and
// the sum is rounded once; rows are sorted by token for that.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_index.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/token_pieces.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// x = token_row (+ position_row); either may be null. A row: its memory, in its table's type.
void EmbedRow(TableRow token, TableRow position, DType dtype, int64_t columns, void* x) {
  ByType(dtype, [&](auto* type) HWY_ATTR {
    ByType(token.dtype, [&](auto* token_type) HWY_ATTR {
      ByType(position.dtype, [&](auto* position_type) HWY_ATTR {
        auto* out = static_cast<decltype(type)>(x);
        const auto* token_row =
            static_cast<const std::remove_pointer_t<decltype(token_type)>*>(token.data);
        const auto* position_row =
            static_cast<const std::remove_pointer_t<decltype(position_type)>*>(position.data);
        ForVectors(columns, [=](int64_t i, auto access) HWY_ATTR {
          V sum = token_row != nullptr ? access.Load(token_row + i) : hn::Zero(D());
          if (position_row != nullptr) sum = hn::Add(sum, access.Load(position_row + i));
          access.Store(sum, out + i);
        });
      });
    });
  });
}

void AddRow(const void* x, DType dtype, int64_t columns, float* sum) {
  ByType(dtype, [&](auto* type) HWY_ATTR {
    const auto* in = static_cast<const std::remove_pointer_t<decltype(type)>*>(x);
    ForVectors(columns, [=](int64_t i, auto access) HWY_ATTR {
      access.Store(hn::Add(access.Load(sum + i), access.Load(in + i)), sum + i);
    });
  });
}

// Adds rows of `x`, `columns` of each from `first` on, to `sum`.
void AddRows(const TensorView& x, std::span<const int32_t> rows, int64_t first, int64_t columns,
             void* sum, DType sum_type) {
  ByType(x.dtype, [&](auto* type) HWY_ATTR {
    ByType(sum_type, [&](auto* to_type) HWY_ATTR {
      const auto* in = x.as<const std::remove_pointer_t<decltype(type)>>() + first;
      auto* to = static_cast<decltype(to_type)>(sum);
      ForVectors(columns, [&](int64_t i, auto access) HWY_ATTR {
        V total = access.Load(to + i);
        for (const int32_t row : rows) {
          total = hn::Add(total, access.Load(in + row * x.row_stride + i));
        }
        access.Store(total, to + i);
      });
    });
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(EmbedRow);
HWY_EXPORT(AddRow);
HWY_EXPORT(AddRows);

namespace {

// None where the row is negative.
TableRow RowOf(const TensorView& table, int64_t row) {
  return {row < 0 ? nullptr : Address(table, row, 0), table.dtype};
}

// Which row of this rank's part of the table each token is.
class TableRows {
 public:
  TableRows(const EmbeddingAttrs& attrs, const TensorView& tokens)
      : tokens_(tokens.as<const int32_t>()),
        first_(attrs.shard * attrs.shard_rows),
        rows_(attrs.shard_rows) {}
  // -1 where another shard holds it.
  int64_t At(int64_t i) const {
    const int64_t row = tokens_[i] - first_;
    return rows_ == 0 || (row >= 0 && row < rows_) ? row : -1;
  }

 private:
  const int32_t* tokens_;
  int64_t first_, rows_;
};

// Counts the position of a row from the start of its document, or of a sequence that is one.
class RowPositions {
 public:
  RowPositions(const EmbeddingAttrs& attrs, const int32_t* starts)
      : share_(attrs.context), sequence_(attrs.sequence), starts_(starts) {}
  // -1 where starts say what none can.
  int64_t At(int64_t row) const {
    const int64_t position = share_.Position(row, sequence_);
    if (starts_ == nullptr) return position;
    return starts_[row] >= 0 && starts_[row] <= position ? position - starts_[row] : -1;
  }

 private:
  const TokenShare share_;
  const int64_t sequence_;
  const int32_t* const starts_;
};

// A part of a table does not say how many rows the whole has: then only negative tokens are wrong.
Status CheckTokens(const char* what, const EmbeddingAttrs& attrs, const TensorView& tokens,
                   const TensorView& table) {
  constexpr int64_t kAnyToken = int64_t{1} << 31;
  return CheckRowIndex(what, tokens, attrs.shard_rows > 0 ? kAnyToken : table.rows());
}

}  // namespace

Status Embedding(const OpAttrs& attrs, std::span<const TensorView> operands,
                 const Context& context) {
  const TensorView& tokens = operands[0];
  const TensorView& table = operands[1];
  const TensorView& positions = operands[2];
  const TensorView& x = operands[3];
  const auto& embedding = std::get<EmbeddingAttrs>(attrs);
  Status status = CheckTokens("embedding: token", embedding, tokens, table);
  if (!status.ok()) return status;
  const TableRows rows(embedding, tokens);
  const RowPositions row_positions(embedding, StartsOf(operands, 4));
  const int64_t columns = table.size[1];
  const bool adds_positions = !positions.absent() && embedding.shard == 0;
  ParallelFor(x.rows(), columns, context.threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = rows.At(row);
      const int64_t position = adds_positions ? row_positions.At(row) : -1;
      HWY_DYNAMIC_DISPATCH(EmbedRow)
      (RowOf(table, at), RowOf(positions, position), x.dtype, columns, Address(x, row, 0));
    }
  });
  return {};
}

namespace {

constexpr int64_t kColumns = 32;  // a piece: two cache lines of f32, so that threads share none

// Calls add(first, count) for pieces of the columns.
template <typename Add>
void ForColumns(int64_t columns, int64_t rows, int threads, const Add& add) {
  ParallelFor((columns + kColumns - 1) / kColumns, kColumns * rows, threads,
              [&](int64_t begin, int64_t end) {
                const int64_t first = begin * kColumns;
                add(first, std::min(end * kColumns, columns) - first);
              });
}

// Adds row i of dx to row at(i) of an f32 table; to none where that is negative.
template <typename At>
void AddInOrder(const TensorView& dx, const TensorView& table, const At& at, int threads) {
  ForColumns(table.size[1], dx.rows(), threads, [&](int64_t first, int64_t count) {
    for (int64_t row = 0; row < dx.rows(); ++row) {
      const int64_t to = at(row);
      if (to < 0) continue;
      HWY_DYNAMIC_DISPATCH(AddRow)
      (Address(dx, row, first), dx.dtype, count, table.as<float>() + to * table.size[1] + first);
    }
  });
}

// The same for a table of 16 bits. `order`: room for an index of each row of dx.
template <typename At>
void AddGrouped(const TensorView& dx, const TensorView& table, const At& at, int threads,
                int32_t* order) {
  const std::span<int32_t> rows(order, static_cast<size_t>(dx.rows()));
  std::iota(rows.begin(), rows.end(), 0);
  std::sort(rows.begin(), rows.end(),
            [&at](int32_t a, int32_t b) { return std::pair(at(a), a) < std::pair(at(b), b); });
  ForColumns(table.size[1], dx.rows(), threads, [&](int64_t first, int64_t count) {
    for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
      const int64_t to = at(rows[begin]);
      while (end < rows.size() && at(rows[end]) == to) ++end;
      if (to < 0) continue;
      HWY_DYNAMIC_DISPATCH(AddRows)
      (dx, rows.subspan(begin, end - begin), first, count, Address(table, to, first), table.dtype);
    }
  });
}

}  // namespace

Status EmbeddingGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                     const Context& context) {
  const TensorView& tokens = operands[0];
  const TensorView& dx = operands[1];
  const auto& embedding = std::get<EmbeddingAttrs>(attrs);
  const TensorView& dtable = operands[2];
  const auto add_to = [&](const TensorView& table, const auto& at) {
    if (table.dtype == DType::kF32) return AddInOrder(dx, table, at, context.threads);
    AddGrouped(dx, table, at, context.threads, reinterpret_cast<int32_t*>(context.workspace));
  };
  if (!dtable.absent()) {
    Status status = CheckTokens("embedding_grad: token", embedding, tokens, dtable);
    if (!status.ok()) return status;
    const TableRows rows(embedding, tokens);
    add_to(dtable, [&rows](int64_t row) { return rows.At(row); });
  }
  if (operands[3].absent()) return {};
  const RowPositions positions(embedding, StartsOf(operands, 4));
  add_to(operands[3], [&positions](int64_t row) { return positions.At(row); });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
