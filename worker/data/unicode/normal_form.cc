// SPDX-License-Identifier: Apache-2.0
#include "worker/data/unicode/normal_form.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "worker/data/unicode/code_points.h"

namespace terrace {
namespace {

struct Decomposition {
  uint32_t code;
  uint32_t first;
  uint32_t second;  // 0: none
  bool composes;    // first + second become `code` again
};
// Its full compatibility decomposition, where it differs from the canonical one: in
// kCompatibleTexts.
struct Compatible {
  uint32_t code;
  uint32_t begin;
  uint32_t count;
};
struct ClassRange {
  uint32_t first;
  uint32_t last;
  uint32_t value;
};
#include "worker/data/unicode/normal_form_table.inc"

constexpr uint32_t kFirstNeedingWork = 0x300;

// Hangul syllables are computed (Unicode chapter 3.12).
constexpr uint32_t kHangul = 0xac00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11a7;
constexpr uint32_t kLeads = 19, kVowels = 21, kTails = 28;

template <size_t kSize>
uint32_t ValueOf(const ClassRange (&ranges)[kSize], uint32_t code) {
  const auto* range = std::upper_bound(std::begin(ranges), std::end(ranges), code,
                                       [](uint32_t c, const ClassRange& r) { return c < r.first; });
  if (range == std::begin(ranges) || code > std::prev(range)->last) return 0;
  return std::prev(range)->value;
}

uint32_t CombiningClass(uint32_t code) {
  return code < kFirstNeedingWork ? 0 : ValueOf(kClasses, code);
}

// False when there is none.
bool DecomposeCompatibly(uint32_t code, std::vector<uint32_t>* out) {
  const auto* found = std::lower_bound(std::begin(kCompatible), std::end(kCompatible), code,
                                       [](const Compatible& c, uint32_t x) { return c.code < x; });
  if (found == std::end(kCompatible) || found->code != code) return false;
  const uint32_t* begin = kCompatibleTexts + found->begin;
  out->insert(out->end(), begin, begin + found->count);
  return true;
}

void Decompose(uint32_t code, std::vector<uint32_t>* out) {
  if (const uint32_t index = code - kHangul; index < kLeads * kVowels * kTails) {
    out->push_back(kLead + index / (kVowels * kTails));
    out->push_back(kVowel + index % (kVowels * kTails) / kTails);
    if (index % kTails != 0) out->push_back(kTail + index % kTails);
    return;
  }
  const auto* found =
      std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), code,
                       [](const Decomposition& d, uint32_t c) { return d.code < c; });
  if (found == std::end(kDecompositions) || found->code != code) {
    out->push_back(code);
    return;
  }
  Decompose(found->first, out);
  if (found->second != 0) Decompose(found->second, out);
}

// The composite of a pair; 0 when there is none.
uint32_t Compose(uint32_t first, uint32_t second) {
  if (first - kLead < kLeads && second - kVowel < kVowels) {
    return kHangul + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
  }
  const bool open_syllable =
      first - kHangul < kLeads * kVowels * kTails && (first - kHangul) % kTails == 0;
  if (open_syllable && second > kTail && second < kTail + kTails) return first + (second - kTail);
  static const std::vector<Decomposition> by_pair = [] {
    std::vector<Decomposition> sorted;
    std::copy_if(std::begin(kDecompositions), std::end(kDecompositions), std::back_inserter(sorted),
                 [](const Decomposition& d) { return d.composes; });
    std::sort(sorted.begin(), sorted.end(), [](const Decomposition& a, const Decomposition& b) {
      return std::pair(a.first, a.second) < std::pair(b.first, b.second);
    });
    return sorted;
  }();
  const auto found =
      std::lower_bound(by_pair.begin(), by_pair.end(), std::pair(first, second),
                       [](const Decomposition& d, const std::pair<uint32_t, uint32_t>& pair) {
                         return std::pair(d.first, d.second) < pair;
                       });
  return found != by_pair.end() && found->first == first && found->second == second ? found->code
                                                                                    : 0;
}

// Marks between two starters, by class; equal ones keep their order.
void SortMarks(std::vector<uint32_t>* codes) {
  for (auto begin = codes->begin(); begin != codes->end();) {
    if (CombiningClass(*begin) == 0) {
      ++begin;
      continue;
    }
    auto end = begin;
    while (end != codes->end() && CombiningClass(*end) != 0) ++end;
    std::stable_sort(begin, end,
                     [](uint32_t a, uint32_t b) { return CombiningClass(a) < CombiningClass(b); });
    begin = end;
  }
}

void ComposeAll(std::vector<uint32_t>* codes) {
  constexpr size_t kNoStarter = static_cast<size_t>(-1);
  size_t starter = kNoStarter;
  uint32_t last_class =
      0;  // of the last code kept after the starter; a mark of the same class blocks
  size_t kept = 0;
  for (size_t i = 0; i < codes->size(); ++i) {
    const uint32_t code = (*codes)[i];
    const uint32_t code_class = CombiningClass(code);
    const bool adjacent = starter != kNoStarter && starter + 1 == kept;
    if (starter != kNoStarter && (adjacent || (last_class < code_class && last_class != 0))) {
      if (const uint32_t composite = Compose((*codes)[starter], code)) {
        (*codes)[starter] = composite;
        continue;
      }
    }
    if (code_class == 0) starter = kept;
    last_class = code_class;
    (*codes)[kept++] = code;
  }
  codes->resize(kept);
}

}  // namespace

bool IsSurelyNormal(std::string_view text, NormalForm form) {
  if (form != NormalForm::kNfc) {
    return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
  }
  for (size_t i = 0; i < text.size();) {
    const uint32_t code = NextCode(text, &i);
    if (code >= kFirstNeedingWork && (code & kRawByte) == 0 && ValueOf(kNeedWork, code) != 0) {
      return false;
    }
  }
  return true;
}

std::string Normalize(std::string_view text, NormalForm form) {
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  std::vector<uint32_t> codes;
  codes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const uint32_t code = NextCode(text, &i);
    if (!compatible || !DecomposeCompatibly(code, &codes)) Decompose(code, &codes);
  }
  SortMarks(&codes);
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) ComposeAll(&codes);
  std::string out;
  out.reserve(text.size());
  for (const uint32_t code : codes) AppendCode(code, &out);
  return out;
}

}  // namespace terrace
