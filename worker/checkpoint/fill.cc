// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/fill.h"

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/safetensors_header.h"

namespace terrace {

absl::Status FillTensor(const StoredTensor& stored, std::string_view path,
                        const StateTensor& target) {
  if (stored.shape != target.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(path), ": tensor ", stored.name, " has the shape ",
                     ShapeText(stored.shape), ", the model's is ", ShapeText(target.shape),
                     "; use the config.json that belongs to these weights"));
  }
  if (!CanConvert(stored.dtype, target.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(Absl(path), ": tensor ", stored.name, " is ",
                                                   Absl(SafetensorsDtypeName(stored.dtype)),
                                                   ", must be F32, BF16 or F16"));
  }
  for (const StateSlice& slice : target.slices) {
    const std::byte* source = stored.data.data() + slice.begin * kernels::SizeOf(stored.dtype);
    ConvertElements(stored.dtype, source, target.dtype, slice.data, slice.elements);
  }
  return absl::OkStatus();
}

}  // namespace terrace
