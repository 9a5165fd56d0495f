// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/validate.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "coordinator/spec/validate_course.h"
#include "coordinator/spec/validate_model.h"
#include "coordinator/spec/validate_optimizer.h"
#include "coordinator/spec/validate_preference.h"

namespace terrace {
namespace {

constexpr size_t kMaxNameLength = 63;  // of a label in DNS and Kubernetes

bool IsName(const std::string& name) {
  auto good = [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= kMaxNameLength &&
         std::isalnum(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), good);
}

// What a name can be turned into: for the message.
std::string Suggested(const std::string& name) {
  std::string out;
  for (unsigned char c : name.substr(0, kMaxNameLength)) {
    out += std::isalnum(c) ? static_cast<char>(std::tolower(c)) : '-';
  }
  while (!out.empty() && out[0] == '-') out.erase(0, 1);
  return out;
}

// "4 or 8": the divisors of `number` next to `got`, which is none of them.
std::string NearestDivisors(int64_t number, int64_t got) {
  int64_t below = std::min(got, number), above = got;
  while (number % below != 0) --below;
  while (above < number && number % above != 0) ++above;
  return above > number || above == below ? absl::StrCat(below)
                                          : absl::StrCat(below, " or ", above);
}

// What needs no model to be wrong; layout/rules.h knows the rest.
void ValidateLayout(SpecReader& reader, const v1::JobSpec& spec) {
  const v1::LayoutSpec& layout = spec.layout();
  const int64_t batch = spec.train().global_batch();
  if (layout.micro_batch() > batch) {
    reader.Problem("layout.micro_batch", absl::StrCat(layout.micro_batch()),
                   absl::StrCat("at most train.global_batch ", batch), absl::StrCat(batch));
  }
  if (layout.dp() > 0 && batch % layout.dp() != 0) {
    reader.Problem("layout.dp", absl::StrCat(layout.dp()),
                   absl::StrCat("a divisor of train.global_batch ", batch),
                   NearestDivisors(batch, layout.dp()));
  }
  if (layout.packing() == "pages" && !layout.allocator().empty() &&
      layout.allocator() != "planned") {
    reader.Problem("layout.packing", "pages",
                   absl::StrCat("left out with layout.allocator ", layout.allocator(),
                                ", which places step buffers while they are used"),
                   "layout.allocator planned");
  }
  if (layout.recompute_every() > 0 && layout.recompute() != "every") {
    reader.Problem("layout.recompute_every", absl::StrCat(layout.recompute_every()),
                   "left out without layout.recompute every", "layout.recompute every");
  }
  if (layout.recompute() == "every" && layout.recompute_every() == 0) {
    reader.Problem("layout.recompute", "every", "accompanied by layout.recompute_every",
                   "sqrt, which chooses the number of layers");
  }
  if (layout.shard_size() > 0 && layout.zero() < 1) {
    reader.Problem("layout.shard_size", absl::StrCat(layout.shard_size()),
                   "accompanied by layout.zero 1, 2 or 3");
  }
  const auto has_codes = [](const std::string& format) {
    return format == "int8" || format == "int4" || format == "fp8";
  };
  if (layout.reduce_block() > 1 && !has_codes(spec.formats().reduce()) &&
      !has_codes(spec.formats().allow().reduce())) {
    reader.Problem("layout.reduce_block", absl::StrCat(layout.reduce_block()),
                   "accompanied by formats.reduce int8, fp8 or int4: only codes are exchanged in "
                   "blocks of ranks",
                   "formats.reduce int8");
  }
  if (!spec.formats().residual().empty() && !has_codes(spec.formats().reduce()) &&
      !has_codes(spec.formats().allow().reduce())) {
    reader.Problem("formats.residual", spec.formats().residual(),
                   "accompanied by formats.reduce int8, fp8 or int4: only what is sent in codes "
                   "loses anything",
                   "formats.reduce int8");
  }
}

void ValidateFrozen(SpecReader& reader, const v1::JobSpec& spec) {
  const std::string& format = spec.formats().frozen();
  const auto& groups = spec.train().optimizer().groups();
  const v1::LoraSpec& lora = spec.model().lora();
  const bool freezes = lora.rank() > 0 || lora.init().starts_with('/') ||
                       std::any_of(groups.begin(), groups.end(),
                                   [](const v1::ParameterGroup& group) { return group.frozen(); });
  if (format.empty() || freezes) return;
  reader.Problem("formats.frozen", format,
                 "accompanied by model.lora or train.optimizer.groups that freeze something: what "
                 "is trained rests as formats.parameter says",
                 "{\"*.layers.*\": {frozen: true}} in train.optimizer.groups");
}

void ValidateLossScale(SpecReader& reader, const v1::JobSpec& spec) {
  const v1::LossScaleSpec& scale = spec.train().loss_scale();
  const std::string& precision = spec.train().precision();
  for (const char* key : {"fixed", "initial", "window", "hysteresis", "min"}) {
    const std::string path = absl::StrCat("train.loss_scale.", key);
    if (precision == "fp16" || !reader.Has(path)) continue;
    reader.Problem(path, "a loss scale", absl::StrCat("left out with train.precision ", precision),
                   "train.precision fp16, which alone scales its loss");
  }
  if (scale.fixed() > 0) {
    for (const char* key : {"initial", "window", "hysteresis", "min"}) {
      const std::string path = absl::StrCat("train.loss_scale.", key);
      if (precision != "fp16" || !reader.Has(path)) continue;
      reader.Problem(path, "a rule for a scale that changes",
                     absl::StrCat("left out with train.loss_scale.fixed ", scale.fixed()),
                     "train.loss_scale.fixed 0, with which the scale is found while the job runs");
    }
    return;
  }
  if (scale.min() > scale.initial()) {
    reader.Problem("train.loss_scale.min", absl::StrCat(scale.min()),
                   absl::StrCat("at most train.loss_scale.initial ", scale.initial()),
                   absl::StrCat(scale.initial()));
  }
}

// formats.reduce and its older name.
void ValidateReduce(SpecReader& reader, const v1::JobSpec& spec) {
  const std::string& older = spec.layout().communication_dtype();
  const std::string& reduce = spec.formats().reduce();
  if (older.empty() || reduce.empty() || (older == "fp32" ? "f32" : older) == reduce) return;
  reader.Problem("layout.communication_dtype", older,
                 absl::StrCat("left out, as formats.reduce says ", reduce), "formats.reduce alone");
}

// What could never be chosen.
void ValidateAllowed(SpecReader& reader, const v1::JobSpec& spec) {
  const std::string& precision = spec.train().precision();
  const v1::FormatSpec& allow = spec.formats().allow();
  const auto check = [&](const char* key, const std::string& value, bool none) {
    if (value.empty() || !none) return;
    reader.Problem(
        key, value,
        absl::StrCat("left out with train.precision ", precision, ", which has nothing in 16 bits"),
        "train.precision bf16");
  };
  const bool exact = precision == "fp32" || precision == "tf32";
  check("formats.allow.gradient", allow.gradient(), exact);
  check("formats.allow.reduce", allow.reduce(), exact && allow.reduce() == "bf16");
  check("formats.allow.activation", allow.activation(), exact);
  check("formats.allow.gather", allow.gather(), exact);
}

// Direct I/O moves whole blocks of this many bytes (proto/program/tiers.h).
constexpr int64_t kBlock = 4096;

void ValidateWholeBlocks(SpecReader& reader, std::string_view path, int64_t bytes) {
  if (bytes <= 0 || bytes % kBlock == 0) return;
  const int64_t above = (bytes / kBlock + 1) * kBlock;
  reader.Problem(path, absl::StrCat(bytes, " bytes"), absl::StrCat("a multiple of ", kBlock),
                 absl::StrCat(above));
}

void ValidateOffload(SpecReader& reader, const v1::JobSpec& spec) {
  const v1::Offload& offload = spec.layout().offload();
  const auto check = [&](std::string_view name, const v1::TierShares& shares) {
    if (shares.nvme() <= 0 || spec.resources().nvme().paths_size() > 0) return;
    reader.Problem(absl::StrCat("layout.offload.", Absl(name)), "nvme",
                   "accompanied by a folder to keep it in",
                   "resources: {nvme: /mnt/nvme}, or host");
  };
  check("parameter", offload.parameter());
  check("gradient", offload.gradient());
  check("optimizer", offload.optimizer());
  check("activation", offload.activation());
  ValidateWholeBlocks(reader, "layout.chunk_bytes", spec.layout().chunk_bytes());
  ValidateWholeBlocks(reader, "layout.tile_bytes", spec.layout().tile_bytes());
}

void ValidateNvme(SpecReader& reader, const v1::JobSpec& spec) {
  const v1::NvmeSpec& nvme = spec.resources().nvme();
  ValidateWholeBlocks(reader, "resources.nvme.block_bytes", nvme.block_bytes());
  std::set<std::filesystem::path> different;
  for (const std::string& path : nvme.paths()) {
    different.insert(std::filesystem::path(path + "/").lexically_normal());
  }
  if (different.size() < static_cast<size_t>(nvme.paths_size())) {
    reader.Problem("resources.nvme.paths", "a folder twice", "different folders",
                   "one folder a drive");
  }
  if (nvme.min_drive_life_days() > 0 && nvme.endurance_bytes() == 0) {
    reader.Problem("resources.nvme.min_drive_life_days", absl::StrCat(nvme.min_drive_life_days()),
                   "accompanied by resources.nvme.endurance, what the drives may be written",
                   "the TBW of their datasheet, as 3PB");
  }
}

// One that the job of that directory removes with its own old ones, and finds no older ones in.
void ValidateDirectory(SpecReader& reader, const std::string& directory) {
  constexpr std::string_view kStep = "step-";
  constexpr size_t kDigits = 8;
  const std::filesystem::path path(directory);
  std::filesystem::path above;
  for (const std::filesystem::path& part : path) {
    const std::string name = part.string();
    const bool is_step = name.size() >= kStep.size() + kDigits && name.starts_with(kStep) &&
                         std::all_of(name.begin() + kStep.size(), name.end(),
                                     [](unsigned char c) { return std::isdigit(c); });
    if (is_step) {
      reader.Problem(
          "checkpoint.directory", directory,
          absl::StrCat("the folder that holds checkpoints, while ", name, " is the name of one"),
          above.string());
      return;
    }
    above /= part;
  }
}

void ValidateCheckpoint(SpecReader& reader, const v1::CheckpointSpec& checkpoint) {
  ValidateDirectory(reader, checkpoint.directory());
  if (checkpoint.save() != "never" || checkpoint.every_steps() == 0) return;
  reader.Problem("checkpoint.every_steps", absl::StrCat(checkpoint.every_steps()),
                 "left out with checkpoint.save never", "checkpoint.save auto");
}

// Each is a training sequence of its own in the program.
constexpr int kMaxBuckets = 16;

// Which of the lengths the pinned context-parallel ranks cannot share.
void ValidateBucketShares(SpecReader& reader, const v1::JobSpec& spec) {
  const v1::LayoutSpec& layout = spec.layout();
  if (layout.cp() < 2) return;
  const int64_t pieces = layout.context_type() == "ulysses" ? layout.cp() : 2 * layout.cp();
  for (const int64_t length : spec.data().buckets()) {
    if (length % pieces == 0) continue;
    const int64_t above = (length / pieces + 1) * pieces;
    return reader.Problem("data.buckets", absl::StrCat(length),
                          absl::StrCat("multiples of ", pieces, " with layout.cp ", layout.cp()),
                          absl::StrCat(above));
  }
}

void ValidateData(SpecReader& reader, const v1::JobSpec& spec) {
  const v1::DataSpec& data = spec.data();
  if (data.validation_fraction() == 0 && data.validation_size() == 0) {
    reader.Problem("data.validation_fraction", "0", "above 0 when data.validation is empty",
                   "0.05");
  }
  // A row's source is computed in 64 bits (worker/data/mixture/source_draw.h).
  constexpr double kMixtureRowsMax = 8796093022208;  // 2^43
  const auto rows =
      static_cast<double>(spec.train().steps()) * static_cast<double>(spec.train().global_batch());
  if (data.mixture_size() > 0 && rows >= kMixtureRowsMax) {
    reader.Problem("train.steps", absl::StrCat(spec.train().steps()),
                   absl::StrCat("fewer than 2^43 rows of a mixture with train.global_batch ",
                                spec.train().global_batch()),
                   "fewer steps, or data.train without weights");
  }
  if (data.buckets().empty()) return;
  const std::string got = absl::StrCat("[", absl::StrJoin(data.buckets(), ", "), "]");
  const auto& buckets = data.buckets();
  if (data.samples() != "documents") {
    return reader.Problem("data.buckets", got, "left out without data.samples documents",
                          "samples: documents");
  }
  if (buckets.size() > kMaxBuckets) {
    return reader.Problem("data.buckets", absl::StrCat(buckets.size(), " lengths"),
                          absl::StrCat("at most ", kMaxBuckets), "lengths that double");
  }
  if (std::adjacent_find(buckets.begin(), buckets.end(), std::greater_equal<>()) != buckets.end()) {
    return reader.Problem("data.buckets", got, "ascending, each length once");
  }
  if (*buckets.rbegin() != data.sequence_length()) {
    return reader.Problem(
        "data.buckets", got,
        absl::StrCat("a list that ends with data.sequence_length ", data.sequence_length()),
        absl::StrCat("to set data.sequence_length to ", *buckets.rbegin()));
  }
  ValidateBucketShares(reader, spec);
}

}  // namespace

void ValidateSpec(SpecReader& reader, v1::JobSpec* spec) {
  if (!IsName(spec->name())) {
    reader.Problem("name", absl::StrCat("\"", spec->name().substr(0, 80), "\""),
                   absl::StrCat("1 to ", kMaxNameLength,
                                " of a-z, 0-9, '-', '_', '.', starting with a letter or digit"),
                   Suggested(spec->name()));
  }
  ValidateModel(reader, spec);
  ValidateCourse(reader, spec);
  ValidateOptimizer(reader, spec);
  ValidatePreference(reader, spec);
  ValidateLayout(reader, *spec);
  ValidateFrozen(reader, *spec);
  ValidateLossScale(reader, *spec);
  ValidateReduce(reader, *spec);
  ValidateAllowed(reader, *spec);
  ValidateOffload(reader, *spec);
  ValidateNvme(reader, *spec);
  ValidateCheckpoint(reader, spec->checkpoint());
  ValidateData(reader, *spec);
}

}  // namespace terrace
