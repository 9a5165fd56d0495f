// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/peers.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

// What a rank tells the others. Long enough for a path and a reason; the rank itself reports all.
struct Word {
  AgreedValues values = {};
  int32_t code = 0;
  char text[500] = {};
  // Of what is attached to the failure: one payload, of few bytes.
  char payload_type[40] = {};
  char payload[40] = {};
};

// Null-terminated; false when there is no room.
template <size_t kSize>
bool Put(std::string_view text, char (&to)[kSize]) {
  to[std::min(text.size(), kSize - 1)] = '\0';
  text.copy(to, kSize - 1);
  return text.size() < kSize;
}

Word WordOf(const absl::Status& status, const AgreedValues& values) {
  Word word = {.values = values, .code = static_cast<int32_t>(status.code())};
  Put(Std(status.message()), word.text);
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    if (!Put(Std(type), word.payload_type) || !Put(std::string(payload), word.payload))
      word.payload_type[0] = '\0';
  });
  return word;
}

// REQUIRES: it failed.
absl::Status FailureOf(size_t rank, Word word) {
  for (char* end : {std::end(word.text), std::end(word.payload_type), std::end(word.payload)})
    end[-1] = '\0';
  absl::Status failure(static_cast<absl::StatusCode>(word.code),
                       absl::StrCat("rank ", rank, ": ", word.text));
  if (word.payload_type[0] != '\0') failure.SetPayload(word.payload_type, absl::Cord(word.payload));
  return failure;
}

}  // namespace

absl::StatusOr<std::vector<AgreedValues>> Agree(CheckpointPeers* peers, const absl::Status& own,
                                                const AgreedValues& given) {
  if (peers == nullptr) {
    RETURN_IF_ERROR(own);
    return std::vector<AgreedValues>{given};
  }
  const Word word = WordOf(own, given);
  std::vector<Word> words(peers->size());
  const absl::Status gathered = peers->AllGather(&word, words.data(), sizeof(word));
  // Rank 0 removes the folder when it has lost a peer; a slower rank then finds no file.
  if (absl::IsNotFound(own) && absl::IsUnavailable(gathered)) return gathered;
  RETURN_IF_ERROR(own);  // says more than that a peer is lost, too
  RETURN_IF_ERROR(gathered);
  std::vector<AgreedValues> values;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    if (words[rank].code != 0) return FailureOf(rank, words[rank]);
    values.push_back(words[rank].values);
  }
  return values;
}

absl::StatusOr<std::vector<int64_t>> Agree(CheckpointPeers* peers, const absl::Status& own,
                                           int64_t value) {
  ASSIGN_OR_RETURN(const std::vector<AgreedValues> all, Agree(peers, own, AgreedValues{value}));
  std::vector<int64_t> values;
  for (const AgreedValues& given : all) values.push_back(given[0]);
  return values;
}

}  // namespace terrace
