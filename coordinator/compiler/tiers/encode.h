// Activations that wait for the backward pass in a format of 8 bits: after the last use of the
// forward pass a value is encoded in blocks (kernels/block_codes.h), and its memory is free; before
// the backward pass uses it, it is decoded into memory of its own. So the forward pass, and with it
// the loss, computes with what it would compute with without, and gradients with what is left of
// the activations: activation compressed training, Chen et al. 2021 (ActNN, arXiv 2104.14129).
//
// Codes and scales are activations like others: they leave the device where activations do
// (offload.h), and fewer bytes travel.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/compiler/graph/builder.h"
#include "kernels/format.h"

namespace terrace::compiler {

// Rewrites the sequence of the builder. Of the values that forward passes write and backward passes
// use those in 16 bits are encoded whose rows are whole blocks of at least kernels::kLeastBlock
// elements; statistics are in f32 and stay. `format` is one with blocks.
void EncodeActivations(const kernels::FormatRow& format, Builder* builder);

}  // namespace terrace::compiler
