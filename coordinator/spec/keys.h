// The table of the job spec's keys: what each is called, accepts, defaults to and means. Parsing,
// validation, the JSON schema and the reference page are all read off it, so a key is added in one
// place (docs/checklists/new_spec_field.md).
//
// A key's path is also the path of the JobSpec field that receives it, unless `field` names another
// one. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

enum class KeyKind {
  kString,
  kPath,        // a string, made absolute against the spec's folder
  kPathOrWord,  // one of `choices` as it is, or a path
  kPaths,       // one path or a list of paths
  kMixture,     // likewise, or a list of mappings of "path", which may be a list, and "weight"
  kWords,       // one word or a list of words of at most `high` bytes
  kChoice,      // one of `choices`
  kChoices,     // a list of them
  kBoolean,     // true or false; the field gets 1 or 0
  kInteger,     // in [low, high]
  kIntegers,    // a list of them
  kReal,        // in [low, high]
  kBytes,       // 1073741824, 80GiB, 512MiB, 16KiB, ... in [low, high]
  kSpan,        // 90s, 2h30m, 1d12h; the field gets seconds, in [low, high]
  kBetas,       // a list of two numbers in [0, 1)
  kNodes,       // N or MIN:MAX
  kShares,      // a tier, or a mapping from tiers to parts in [0, 1] that sum to 1
  kPrecision,  // one of `choices`, or a mapping of "default" and "layers" (proto/precision_place.h)
  kGroups,     // a mapping from patterns of tensors' names to how these are updated
  kModelConfig,  // preset name, path of a config.json, or the config itself as a mapping
};

struct SpecKey {
  std::string_view path;
  KeyKind kind;
  // As it would be written, or a number below `low` that stands for "chosen"; "" means none.
  std::string_view fallback;
  bool required;
  double low, high;
  std::vector<std::string_view> choices;
  std::string_view field;    // path of the JobSpec field when it differs from `path`
  std::string_view meaning;  // one line for people
  // Of a kChoice: what to write in place of a word that is none of `choices`; "" when nothing is
  // known.
  std::string (*instead)(std::string_view word) = nullptr;
  std::string_view unless = {};  // of a required key: the path of one that may take its place
};

// True when the fallback is a number that cannot be written.
bool MeansChosen(const SpecKey& key);

// A section that may also be written as one value, which `keys` then get: `offload: host`.
struct ShortForm {
  std::string_view section;
  std::vector<std::string_view> keys;
};
const std::vector<ShortForm>& ShortForms();

// In the order of the reference page: parents before children, grouped by section.
const std::vector<SpecKey>& SpecKeys();

}  // namespace terrace
