// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/tiers/tiers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {
namespace {

using kernels::DType;

int64_t WholePages(int64_t elements, DType dtype) {
  const int64_t page = kNvmeAlignment / kernels::SizeOf(dtype);
  return (elements + page - 1) / page * page;
}

}  // namespace

bool OffDevice(const v1::TierShares& shares) { return shares.host() > 0 || shares.nvme() > 0; }

bool OffDevice(const v1::Offload& offload) {
  return OffDevice(offload.parameter()) || OffDevice(offload.gradient()) ||
         OffDevice(offload.optimizer()) || OffDevice(offload.activation());
}

TierChooser::TierChooser(const v1::TierShares& shares) {
  share_[v1::HOST] = shares.host();
  share_[v1::NVME] = shares.nvme();
  share_[v1::DEVICE] = OffDevice(shares) ? shares.device() : 1;
}

v1::Tier TierChooser::Next(int64_t elements) {
  total_ += static_cast<double>(elements);
  const auto missing = [&](v1::Tier tier) { return share_[tier] * total_ - given_[tier]; };
  v1::Tier most = v1::DEVICE;
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    if (missing(tier) > missing(most)) most = tier;
  }
  given_[most] += static_cast<double>(elements);
  return most;
}

TierCopies::TierCopies(int64_t chunk_bytes, Builder* builder)
    : chunk_bytes_(std::max(kNvmeAlignment, (chunk_bytes > 0 ? chunk_bytes : kDefaultChunkBytes) /
                                                kNvmeAlignment * kNvmeAlignment)),
      builder_(*builder) {}

int64_t TierCopies::ChunkElements(DType dtype) const {
  return chunk_bytes_ / kernels::SizeOf(dtype);
}

Slice TierCopies::Staging(Ring ring, const Slice& piece, const std::string& name) {
  const DType dtype = piece.shape.dtype;
  Graph& graph = builder_.graph();
  return graph.Whole(graph.Add({.name = name + ".staging",
                                .cls = v1::COMMUNICATION,
                                .dtype = dtype,
                                .shape = {WholePages(piece.shape.Elements(), dtype)},
                                .tier = v1::HOST,
                                .sequence = builder_.sequence(),
                                .ring = static_cast<int>(ring)}));
}

Slice TierCopies::Padded(const Slice& piece) {
  return Range(piece, 0, WholePages(piece.shape.Elements(), piece.shape.dtype));
}

void TierCopies::ToDevice(Slice from, Slice to, const std::string& name) {
  const bool on_nvme = builder_.graph().TierOf(from) == v1::NVME;
  const int64_t elements = from.shape.Elements(), chunk = ChunkElements(from.shape.dtype);
  for (int64_t begin = 0; begin < elements; begin += chunk) {
    const int64_t count = std::min(chunk, elements - begin);
    Slice piece = Range(from, begin, count);
    if (on_nvme) {
      const Slice staging = Staging(Ring::kFetch, piece, name);
      builder_.Copy(v1::NVME_LOAD, {Padded(piece), staging}, absl::StrCat("load ", name));
      piece = Range(staging, 0, count);
    }
    builder_.Copy(v1::TO_DEVICE, {piece, Range(to, begin, count)}, absl::StrCat("fetch ", name));
  }
}

void TierCopies::FromDevice(Slice from, Slice to, const std::string& name) {
  const bool on_nvme = builder_.graph().TierOf(to) == v1::NVME;
  const int64_t elements = from.shape.Elements(), chunk = ChunkElements(from.shape.dtype);
  for (int64_t begin = 0; begin < elements; begin += chunk) {
    const int64_t count = std::min(chunk, elements - begin);
    Slice piece = Range(from, begin, count), rest = Range(to, begin, count), near = rest;
    if (on_nvme) {
      piece = Padded(piece), rest = Padded(rest);
      near = Staging(Ring::kLeave, piece, name);
    }
    builder_.Copy(v1::TO_HOST, {piece, near}, absl::StrCat("move ", name));
    if (on_nvme) builder_.Copy(v1::NVME_STORE, {near, rest}, absl::StrCat("store ", name));
  }
}

void TierCopies::Round(Slice from, Slice to, const std::string& name) {
  const v1::Tier tier = builder_.graph().TierOf(from);
  const bool leaves = tier == v1::DEVICE && builder_.graph().TierOf(to) != v1::DEVICE;
  if (tier == v1::DEVICE && !leaves) return Cast(from, to, name);
  const int64_t elements = from.shape.Elements(), chunk = ChunkElements(from.shape.dtype);
  const int64_t page = StreamedElements(to.shape.dtype);
  const int64_t pieces = std::max<int64_t>(1, chunk / page) * page;
  for (int64_t begin = 0; begin < elements; begin += pieces) {
    const int64_t count = std::min(pieces, elements - begin);
    Slice piece = Range(from, begin, count);
    if (leaves) {
      RoundAndLeave(piece, Range(to, begin, count), name);
      continue;
    }
    if (tier == v1::NVME) {
      const Slice staging = Staging(Ring::kFetch, piece, name);
      builder_.Copy(v1::NVME_LOAD, {Padded(piece), staging}, absl::StrCat("load ", name));
      piece = Range(staging, 0, count);
    }
    RoundOnHost(piece, Range(to, begin, count), name);
  }
}

void TierCopies::RoundAndLeave(Slice here, Slice to, const std::string& name) {
  const int64_t elements = to.shape.Elements();
  const Slice rounded = builder_.NewValue(absl::StrCat("rounded.", name), v1::COMMUNICATION,
                                          to.shape.dtype, {elements});
  Cast(here, rounded, name);
  const bool on_nvme = builder_.graph().TierOf(to) == v1::NVME;
  const Slice staging = on_nvme ? Staging(Ring::kRounded, to, name) : to;
  builder_.Copy(v1::TO_HOST, {rounded, Range(staging, 0, elements)}, absl::StrCat("move ", name));
  if (on_nvme)
    builder_.Copy(v1::NVME_STORE, {staging, Padded(to)}, absl::StrCat("store rounded ", name));
}

void TierCopies::RoundOnHost(Slice here, Slice to, const std::string& name) {
  const v1::Tier tier = builder_.graph().TierOf(to);
  if (tier == v1::HOST) return Cast(here, to, name);
  const Slice staging = Staging(Ring::kRounded, to, name);
  const Slice rounded = Range(staging, 0, to.shape.Elements());
  Cast(here, rounded, name);
  if (tier == v1::NVME) {
    builder_.Copy(v1::NVME_STORE, {staging, Padded(to)}, absl::StrCat("store rounded ", name));
  } else {
    builder_.Copy(v1::TO_DEVICE, {rounded, to}, absl::StrCat("send rounded ", name));
  }
}

void TierCopies::Cast(Slice from, Slice to, const std::string& name) {
  builder_.Compute(kernels::Op::kCast, kernels::NoAttrs{}, {from, to}, "round " + name);
}

}  // namespace terrace::compiler
