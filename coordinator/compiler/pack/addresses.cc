// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/addresses.h"

#include <algorithm>
#include <utility>

namespace terrace {
namespace {

// What holes offer to a buffer that need not lie in one piece.
struct Offer {
  std::vector<PackPageRun> whole;
  int64_t pages = 0;             // of all of these
  std::vector<ByteRange> tails;  // the last bytes of a page whose first are taken
  std::vector<ByteRange> heads;  // the first bytes of a page whose last are taken
};

Offer OfferOf(absl::Span<const ByteRange> holes, int64_t page_bytes) {
  Offer offer;
  for (const ByteRange& hole : holes) {
    const int64_t first = (hole.begin + page_bytes - 1) / page_bytes;
    const int64_t last = hole.end / page_bytes;
    if (first < last) {
      offer.whole.push_back({first, last - first});
      offer.pages += last - first;
    }
    if (first > last) continue;  // inside one page
    if (hole.begin < first * page_bytes) offer.tails.push_back({hole.begin, first * page_bytes});
    if (last * page_bytes < hole.end) offer.heads.push_back({last * page_bytes, hole.end});
  }
  return offer;
}

// The smallest part of at least so many bytes, or nullptr.
const ByteRange* Tightest(const std::vector<ByteRange>& parts, int64_t bytes) {
  const ByteRange* best = nullptr;
  for (const ByteRange& part : parts) {
    const int64_t size = part.end - part.begin;
    if (size >= bytes && (best == nullptr || size < best->end - best->begin)) best = &part;
  }
  return best;
}

// The largest part that is not of the page that begins at `but`, or nullptr.
const ByteRange* Largest(const std::vector<ByteRange>& parts, int64_t but) {
  const ByteRange* best = nullptr;
  for (const ByteRange& part : parts) {
    if (part.begin == but) continue;
    if (best == nullptr || part.end - part.begin > best->end - best->begin) best = &part;
  }
  return best;
}

// How a buffer is made up: the last bytes of a page, whole pages, the first bytes of a page.
struct Cut {
  const ByteRange* tail = nullptr;
  int64_t tail_bytes = 0;
  int64_t pages = 0;
  const ByteRange* head = nullptr;
};

// Parts of pages first, whole pages serve any buffer.
std::optional<Cut> CutOf(const Offer& offer, int64_t bytes, int64_t page_bytes) {
  const int64_t pages = bytes / page_bytes, rest = bytes % page_bytes;
  const ByteRange* tail = Largest(offer.tails, -1);
  const ByteRange* head =
      tail == nullptr ? nullptr : Largest(offer.heads, tail->begin / page_bytes * page_bytes);
  const int64_t both =
      tail == nullptr || head == nullptr ? 0 : tail->end - tail->begin + head->end - head->begin;
  if (offer.pages >= pages) {
    if (rest == 0) return Cut{.pages = pages};
    if (const ByteRange* part = Tightest(offer.heads, rest); part != nullptr)
      return Cut{.pages = pages, .head = part};
    if (const ByteRange* part = Tightest(offer.tails, rest); part != nullptr)
      return Cut{.tail = part, .tail_bytes = rest, .pages = pages};
    if (both >= rest)
      return Cut{.tail = tail, .tail_bytes = tail->end - tail->begin, .pages = pages, .head = head};
    if (offer.pages > pages) return Cut{.pages = pages + 1};
  }
  if (offer.pages + 1 == pages && both >= page_bytes + rest) {
    return Cut{
        .tail = tail, .tail_bytes = tail->end - tail->begin, .pages = pages - 1, .head = head};
  }
  return std::nullopt;
}

// The largest runs, the last one no larger than need be.
std::vector<PackPageRun> TakePages(std::vector<PackPageRun> runs, int64_t pages) {
  std::stable_sort(runs.begin(), runs.end(),
                   [](const auto& a, const auto& b) { return a.pages > b.pages; });
  std::vector<PackPageRun> taken;
  for (size_t k = 0; pages > 0; ++k) {
    while (k + 1 < runs.size() && runs[k + 1].pages >= pages) ++k;
    taken.push_back({runs[k].page, std::min(pages, runs[k].pages)});
    pages -= taken.back().pages;
  }
  return taken;
}

}  // namespace

PackAddresses::PackAddresses(int64_t page_bytes, int64_t memory_bytes)
    : page_bytes_(page_bytes), end_(memory_bytes) {
  pieces_.push_back({.bytes = memory_bytes, .begins_group = true});
}

std::optional<int64_t> PackAddresses::Find(absl::Span<const ByteRange> holes, int64_t bytes) const {
  std::optional<int64_t> best;
  int64_t best_bytes = 0;
  int64_t begin = 0, end = 0;  // the stretch of free addresses that is being followed
  const auto offer = [&] {
    if (end - begin < bytes || (best.has_value() && end - begin >= best_bytes)) return;
    best = begin;
    best_bytes = end - begin;
  };
  for (const Piece& piece : pieces_) {
    const int64_t shift = piece.address - piece.memory;
    bool may_follow = !piece.begins_group;
    auto hole = std::upper_bound(holes.begin(), holes.end(), piece.memory,
                                 [](int64_t at, const ByteRange& h) { return at < h.end; });
    for (; hole != holes.end() && hole->begin < piece.memory + piece.bytes; ++hole) {
      const int64_t from = std::max(hole->begin, piece.memory) + shift;
      if (!may_follow || from != end) {
        offer();
        begin = from;
      }
      end = std::min(hole->end, piece.memory + piece.bytes) + shift;
      may_follow = true;
    }
  }
  offer();
  return best;
}

std::optional<int64_t> PackAddresses::Add(absl::Span<const ByteRange> holes, int64_t bytes,
                                          int64_t runs_max, int64_t pages_max) {
  Offer offer = OfferOf(holes, page_bytes_);
  const std::optional<Cut> cut = CutOf(offer, bytes, page_bytes_);
  if (!cut.has_value()) return std::nullopt;
  std::vector<PackPageRun> runs;
  if (cut->tail != nullptr) runs.push_back({cut->tail->begin / page_bytes_, 1});
  for (const PackPageRun& run : TakePages(std::move(offer.whole), cut->pages)) runs.push_back(run);
  if (cut->head != nullptr) runs.push_back({cut->head->begin / page_bytes_, 1});
  int64_t all_pages = alias_pages();
  for (const PackPageRun& run : runs) all_pages += run.pages;
  if (static_cast<int64_t>(pieces_.size() - 1 + runs.size()) > runs_max || all_pages > pages_max) {
    return std::nullopt;
  }
  const int64_t address = end_ + (cut->tail == nullptr ? 0 : page_bytes_ - cut->tail_bytes);
  for (size_t k = 0; k < runs.size(); ++k) {
    pieces_.push_back({.address = end_,
                       .memory = runs[k].page * page_bytes_,
                       .bytes = runs[k].pages * page_bytes_,
                       .begins_group = k == 0});
    end_ += pieces_.back().bytes;
  }
  return address;
}

void PackAddresses::AppendMemory(int64_t address, int64_t bytes,
                                 std::vector<ByteRange>* ranges) const {
  const int64_t end = address + bytes;
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), address,
                                [](int64_t at, const Piece& p) { return at < p.address; });
  for (--piece; address < end; ++piece) {
    const int64_t stop = std::min(end, piece->address + piece->bytes);
    const int64_t shift = piece->memory - piece->address;
    ranges->push_back({address + shift, stop + shift});
    address = stop;
  }
}

std::vector<PackPageRun> PackAddresses::Runs() const {
  std::vector<PackPageRun> runs;
  for (size_t k = 1; k < pieces_.size(); ++k) {
    runs.push_back({pieces_[k].memory / page_bytes_, pieces_[k].bytes / page_bytes_});
  }
  return runs;
}

}  // namespace terrace
