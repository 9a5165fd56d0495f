// What the coordinator and ranks both know of a checkpoint's manifest.json (docs/formats.md): the
// sum over its own text, and the spec in it; and what stands for both where another program wrote
// the weights.
//
// Pure, apart from HoldsForeignWeights, which looks at the names of files. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "proto/v1/job.pb.h"

namespace terrace {

inline constexpr int64_t kManifestBytesMax = 16 << 20;

// The key that is last in the text, and its value until the text is sealed.
inline constexpr char kManifestSealKey[] = "manifest_sha256";
std::string UnsealedManifest();
// Puts the SHA-256 of the text as it is, with that value, in its place. A text without the key
// stays as it is.
std::string SealManifest(std::string text);
// DATA_LOSS when the text is not what was sealed. OK where there is no seal: earlier releases wrote
// none.
absl::Status CheckManifestSeal(std::string_view text);

// Of the job that wrote it; nothing where that cannot be read.
std::optional<v1::JobSpec> SpecOfManifest(std::string_view text);

// Whether the folder is one of transformers or the Hub: a config.json and no manifest. A checkpoint
// that has lost its manifest is none: its optimizer's states tell it.
bool HoldsForeignWeights(const std::string& folder);
// What is taken for the job of such a folder: texts are read as one stream, computed in f32.
v1::JobSpec SpecOfForeignWeights();

}  // namespace terrace
