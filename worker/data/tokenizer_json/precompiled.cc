// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/precompiled.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/status_macros.h"
#include "worker/data/character_map.h"
#include "worker/data/characters.h"
#include "worker/data/unicode/character_class.h"
#include "worker/data/unicode/code_points.h"

namespace terrace::tokenizer_json {
namespace {

constexpr size_t kClusterBytes = 6;  // clusters that are shorter are looked up as a whole

// Bytes of the cluster that `text` begins with: a character and what extends it (Unicode Standard
// Annex 29). Rules for clusters that cannot be short, such as Hangul and flags, are left out.
size_t ClusterBytes(std::string_view text) {
  if (text.starts_with("\r\n")) return 2;
  size_t end = 0;
  const uint32_t first = NextCode(text, &end);
  if (IsClusterControl(first)) return end;
  for (size_t next = end; end < text.size(); end = next) {
    if (!ExtendsCluster(NextCode(text, &next))) break;
  }
  return end;
}

class Precompiled {
 public:
  explicit Precompiled(CharacterMap map) : map_(std::move(map)) {}

  // A rule for the beginning of a short cluster takes the place of all of it; in others every
  // character is looked up alone.
  bool Apply(std::string_view text, std::string* out, size_t* start_bytes) const {
    size_t start = 0;
    size_t region = *start_bytes;
    for (size_t begin = 0; begin < text.size();) {
      // The library takes what follows a beginning that is taken away for the beginning.
      if (out->empty() && region > 0) {
        region = std::max(region, begin + CharacterBytes(text.substr(begin)));
      }
      const std::string_view cluster = text.substr(begin, ClusterBytes(text.substr(begin)));
      if (cluster.size() < kClusterBytes && AppendRule(cluster, out)) {
        if (begin < region) start = out->size();
        begin += cluster.size();
        continue;
      }
      for (const size_t end = begin + cluster.size(); begin < end;) {
        const bool at_start = begin < region;
        const std::string_view character = text.substr(begin, CharacterBytes(text.substr(begin)));
        if (!AppendRule(character, out)) out->append(character);
        begin += character.size();
        if (at_start) start = out->size();
      }
    }
    *start_bytes = start;
    return true;
  }

 private:
  bool AppendRule(std::string_view text, std::string* out) const {
    const CharacterMap::Rule rule = map_.Shortest(text);
    out->append(rule.replacement);
    return rule.consumed > 0;
  }

  const CharacterMap map_;
};

}  // namespace

absl::StatusOr<Normalizer::Step> ReadPrecompiled(const Json& json, Remarks* remarks) {
  constexpr char kWhere[] = "normalizer Precompiled";
  constexpr char kName[] = "normalizer Precompiled.precompiled_charsmap";
  RemarkUnknownKeys(json, kWhere, {"type", "precompiled_charsmap"}, remarks);
  ASSIGN_OR_RETURN(const std::optional<std::string> base64,
                   StringMember(json, "precompiled_charsmap", kWhere));
  std::string bytes;
  if (!base64.has_value() || !absl::Base64Unescape(*base64, &bytes)) {
    return Unsupported(kName, "something else", "a character map in base 64");
  }
  absl::StatusOr<CharacterMap> map = CharacterMap::Parse(bytes);
  if (!map.ok()) return Unsupported(kName, "damaged", "a whole character map");
  // Shared, because a std::function must be copyable.
  const auto precompiled = std::make_shared<const Precompiled>(*std::move(map));
  return [precompiled](std::string_view text, std::string* out, size_t* start_bytes) {
    return precompiled->Apply(text, out, start_bytes);
  };
}

}  // namespace terrace::tokenizer_json
