// The techniques that save memory, as a table: which keys of a spec each sets, and what it does.
// All else of an evaluation is read off its rows, so a technique is added in one place.
//
// Every row is a whole layout: the keys of NoTechnique(), with those of the row in their place.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/v1/evaluation.pb.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct Setting {
  std::string_view key;    // of the spec, as a person writes it
  std::string_view value;  // of a class of layout.offload a tier; bytes in MiB
};

struct Technique {
  std::string_view group;
  std::string_view name;
  std::string_view meaning;    // what it does, for people
  std::string_view no_effect;  // why it may change nothing
  std::vector<Setting> settings;
  bool changes_training = false;
};

// From the cheapest kind to the dearest, as a rule.
const std::vector<Technique>& Techniques();

// Data parallelism over all ranks, every state whole and on the device, nothing recomputed.
std::span<const Setting> NoTechnique();

// False: a JobSpec has no such key, or not with such a value.
bool Apply(const Setting& setting, v1::JobSpec* spec);

// The spec with a layout of the keys of NoTechnique() and, over them, of `technique` (null: none).
// What the spec's layout says of how bytes are packed, sent and cut stays. `settings` gets the
// keys.
v1::JobSpec WithTechnique(v1::JobSpec spec, const Technique* technique,
                          std::vector<v1::SpecSetting>* settings);

// Keys that the spec pins and WithTechnique() leaves out.
std::vector<std::string> LeftOut(const v1::JobSpec& spec);

}  // namespace terrace
