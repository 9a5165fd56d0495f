// SPDX-License-Identifier: Apache-2.0
#include "worker/data/samples/document_ends.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/data/document_samples.h"

namespace terrace {
namespace {

// Documents that end with a token, the last one perhaps without.
void VisitByToken(const TokenSegment& segment, int32_t end_of_text, const DocumentVisitor& visit) {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> block(kBlock);
  int64_t begin = 0;
  for (int64_t at = 0; at < segment.count; at += kBlock) {
    const std::span<int32_t> ids(block.data(), std::min(kBlock, segment.count - at));
    segment.Read(at, ids);
    for (auto i = std::find(ids.begin(), ids.end(), end_of_text); i != ids.end();
         i = std::find(i + 1, ids.end(), end_of_text)) {
      const int64_t end = at + (i - ids.begin()) + 1;
      visit(begin, end - begin);
      begin = end;
    }
  }
  if (begin < segment.count) visit(begin, segment.count - begin);
}

absl::Status VisitSegment(const TokenSegment& segment, std::optional<int32_t> end_of_text,
                          const DocumentVisitor& visit) {
  if (segment.document_end) {
    int64_t begin = 0;
    for (int64_t i = 0; i < segment.documents; ++i) {
      const int64_t end = segment.document_end(i);
      if (end < begin || end > segment.count) {
        return absl::InvalidArgumentError(absl::StrCat(
            "what is cached of ", segment.path, " ends document ", i, " at token ", end,
            ", must be from ", begin, " to ", segment.count, "; remove the cache's file"));
      }
      visit(begin, end - begin);
      begin = end;
    }
    return absl::OkStatus();
  }
  if (end_of_text.has_value()) {
    VisitByToken(segment, *end_of_text, visit);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      segment.path,
      " does not say where its documents end, which data.samples: documents and packed have to "
      "know; set data.tokenizer to the one that made it, with an end-of-text token, put Megatron's "
      ".idx beside it, or use samples: stream"));
}

}  // namespace

absl::Status VisitDocuments(const TokenSequence& tokens, std::optional<int32_t> end_of_text,
                            const DocumentVisitor& visit) {
  if (tokens.size() > kMaxDocumentTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there are ", tokens.size(), " tokens, documents as samples allow ", kMaxDocumentTokens));
  }
  int64_t first = 0;
  for (const TokenSegment& segment : tokens.segments()) {
    RETURN_IF_ERROR(VisitSegment(
        segment, end_of_text, [&](int64_t begin, int64_t count) { visit(first + begin, count); }));
    first += segment.count;
  }
  return absl::OkStatus();
}

}  // namespace terrace
