#!/usr/bin/env python3
"""Writes block_codes.txt: the scales and codes that torchao gives to numbers in blocks of 128 elements.

A line a format, "int8" (symmetric, -127 to 127), "fp8" (E4M3) and "int4" (symmetric, -7 to 7): its name, then for each of BLOCKS blocks the f32 bits of the scale and
the codes as one hexadecimal word. The numbers are those of numbers() below. torchao divides by the scale, where TransformerEngine and
Terrace multiply by its inverse: scales may differ in their last bit, and codes where a number lies within that of the middle between two.
Run with torchao 0.18.0 and the torch that README.md names.
"""
import numpy as np
import torch
from torchao.quantization import quant_primitives as quant

BLOCKS = 16
BLOCK = 128


def numbers():
    """Of very different size; the blocks differ in how much."""
    state, out = 1, []
    for block in range(BLOCKS):
        for _ in range(BLOCK):
            state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            mantissa = (state >> 40) - (1 << 23)
            shift = (state >> 33) % (block + 1)
            out.append(np.float32(mantissa) * np.float32(2.0) ** np.float32(-23 - shift))
    return torch.from_numpy(np.array(out, dtype=np.float32)).reshape(BLOCKS, BLOCK)


def whole(x, most):
    scale, zero = quant.choose_qparams_affine(x, quant.MappingType.SYMMETRIC, (1, BLOCK), torch.int8, -most, most,
                                              eps=torch.finfo(torch.float32).tiny, scale_dtype=torch.float32)
    return scale, quant.quantize_affine(x, (1, BLOCK), scale, zero, torch.int8, -most, most)


def int8(x):
    return whole(x, 127)


def int4(x):
    """A code a byte, its upper bits 0."""
    scale, codes = whole(x, 7)
    return scale, codes & 15


def fp8(x):
    scale = quant._choose_scale_float8(x, (1, BLOCK), torch.float8_e4m3fn)
    return scale, quant._quantize_affine_float8(x, scale, torch.float8_e4m3fn)


def main():
    x = numbers()
    lines = []
    for name, encode in (("int8", int8), ("fp8", fp8), ("int4", int4)):
        scale, codes = encode(x)
        words = [name]
        for block in range(BLOCKS):
            words.append(f"{np.float32(scale.flatten()[block].item()).view(np.uint32):08x}")
            words.append(bytes(codes[block].view(torch.uint8).tolist()).hex())
        lines.append(" ".join(words))
    with open("block_codes.txt", "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
