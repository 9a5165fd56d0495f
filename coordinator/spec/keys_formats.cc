// The keys of formats: how numbers rest and travel.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/key_sections.h"

namespace terrace {

std::vector<SpecKey> FormatKeys() {
  using enum KeyKind;
  return {
      {"formats.parameter",
       kChoice,
       "",
       false,
       0,
       0,
       {"f32", "bf16", "f16"},
       "",
       "Format of matrices as products read them: what these compute with (bf16; f16 with precision "
       "fp16) from f32 masters that lie with the moments, or f32. The numbers are the same. Without "
       "it chosen: 16 bits with zero; alone, or where they rest off the device, they cost 2 bytes a "
       "parameter beside the masters, and halve what is prefetched"},
      {"formats.gradient",
       kChoice,
       "",
       false,
       0,
       0,
       {"f32", "bf16"},
       "",
       "Format in which the gradients of matrices are stored and accumulated; without it f32. bf16 takes 2 "
       "bytes a parameter less and changes the numbers: each addition is rounded. Not with precision "
       "fp32 or tf32"},
      {"formats.reduce",
       kChoice,
       "",
       false,
       0,
       0,
       {"f32", "bf16", "fp8", "int8", "int4"},
       "",
       "Format in which data-parallel ranks send gradients to each other; without it that of "
       "formats.gradient. Not bf16 with precision fp32 or tf32. int8, fp8 (E4M3) and int4, with zero "
       "1 to 3: blocks of 128 elements of matrices' gradients with a scale each, a quarter and an "
       "eighth of the bytes of f32; they are added up in f32, first over the ranks of a node "
       "(layout.reduce_block). Lossy, so chosen only where formats.allow says so"},
      {"formats.moments",
       kChoice,
       "f32",
       false,
       0,
       0,
       {"f32", "bf16", "int8"},
       "",
       "Format in which Adam's moments of matrices and tables rest; each update is in f32. Lossy but "
       "for f32, so chosen only where formats.allow says so: bf16 saves 4 bytes a parameter, int8 (blocks of 256, as "
       "8-bit optimizers) 6. Those of norms and biases are f32"},
      {"formats.activation",
       kChoice,
       "",
       false,
       0,
       0,
       {"fp8", "int8"},
       "",
       "Format in which activations wait for the backward pass; without it as they were computed. fp8 "
       "(E4M3) and int8, blocks of 128 elements with a scale each, take half of 16 bits and two passes "
       "over memory. Lossy, so chosen only where formats.allow says so: the loss of a step is exact, its "
       "gradients are not. Not with precision fp32 or tf32"},
      {"formats.gather",
       kChoice,
       "",
       false,
       0,
       0,
       {"fp8", "int8"},
       "",
       "Format in which matrices travel when ranks that share them gather them for a use (zero 3); "
       "without it as passes read them. fp8 (E4M3) and int8, blocks of 128 elements with a scale each, "
       "take half of the bytes of 16 bits; passes compute with what arrives. Lossy, so chosen only "
       "where formats.allow says so"},
      {"formats.residual",
       kChoice,
       "",
       false,
       0,
       0,
       {"bf16", "f32"},
       "",
       "Error feedback: the type in which each rank keeps an average of what codes of its gradients "
       "(formats.reduce int8, fp8 or int4) were not worth, which it adds to those of the next micro-batch or "
       "step. 2 or 4 bytes for each parameter of a rank's stage, on the device; saved in checkpoints. Without "
       "it that is lost. Not with precision fp16, nor with layout.shard_size"},
      {"formats.frozen",
       kChoice,
       "",
       false,
       0,
       0,
       {"nf4", "int8", "fp8"},
       "",
       "Format in which the frozen matrices of layers rest (model.lora, train.optimizer.groups); without it as "
       "passes read them. nf4 (QLoRA's 16 numbers, blocks of 64 elements with a scale each: 4.5 bits an element), int8 and fp8 "
       "(E4M3, blocks of 128: 8.25 bits). They are decoded for each use to what passes read. Tables and the LM head "
       "rest as passes read them. Weights are encoded once, when the job starts, and saved as they rest"},
      {"formats.allow.gradient",
       kChoice,
       "",
       false,
       0,
       0,
       {"bf16"},
       "",
       "bf16 gradients of matrices may be chosen where formats.gradient leaves it open: if nothing fits without, or "
       "the step is faster by more than a tenth"},
      {"formats.allow.reduce",
       kChoice,
       "",
       false,
       0,
       0,
       {"bf16", "fp8", "int8", "int4"},
       "",
       "Gradients may be sent so where formats.reduce leaves it open: if nothing fits without, or "
       "the step is faster by more than a tenth"},
      {"formats.allow.moments",
       kChoice,
       "",
       false,
       0,
       0,
       {"bf16", "int8"},
       "",
       "Such moments may be chosen where formats.moments leaves it open: if nothing fits without, or "
       "the step is faster by more than a tenth"},
      {"formats.allow.activation",
       kChoice,
       "",
       false,
       0,
       0,
       {"fp8", "int8"},
       "",
       "Such activations may be chosen where formats.activation leaves it open: if nothing fits without, or "
       "the step is faster by more than a tenth"},
      {"formats.allow.gather",
       kChoice,
       "",
       false,
       0,
       0,
       {"fp8", "int8"},
       "",
       "Such gathers may be chosen where formats.gather leaves it open: if nothing fits without, or "
       "the step is faster by more than a tenth"},
  };
}

}  // namespace terrace
