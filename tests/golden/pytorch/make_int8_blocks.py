#!/usr/bin/env python3
"""Writes int8_blocks.txt: the maps of bitsandbytes' 8-bit optimizers, and the codes that it gives to numbers in blocks of 256.

A line a map, "signed" and "unsigned": its name, the f32 bits of its 256 numbers, then for each of BLOCKS blocks the f32 bits of
the scale and the codes as one hexadecimal word. The numbers are those of numbers() below, squared for the unsigned map. Double
precision in, so that bitsandbytes looks for the nearest number; its kernel for f32 on CPUs takes neighbours of it too, its
CUDA kernel does not. Run with bitsandbytes 0.50.2 and the torch that README.md names.
"""
import numpy as np
import torch
from bitsandbytes.functional import create_dynamic_map

BLOCKS = 8
BLOCK = 256


def numbers():
    """Of very different size; the blocks differ in how much."""
    state, out = 1, []
    for block in range(BLOCKS):
        for _ in range(BLOCK):
            state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            mantissa = (state >> 40) - (1 << 23)
            shift = (state >> 33) % (2 * block + 1)
            out.append(np.float32(mantissa) * np.float32(2.0) ** np.float32(-23 - shift))
    return np.array(out, dtype=np.float32)


def bits(value):
    return f"{np.float32(value).view(np.uint32):08x}"


def main():
    lines = []
    for name, signed in (("signed", True), ("unsigned", False)):
        code = create_dynamic_map(signed)
        x = numbers() if signed else numbers() ** 2
        got, scales = torch.ops.bitsandbytes.quantize_blockwise(torch.from_numpy(x.astype(np.float64)), code, BLOCK)
        words = [name] + [bits(n) for n in code.numpy()]
        for block in range(BLOCKS):
            words.append(bits(scales[block].item()))
            words.append(bytes(got[block * BLOCK:(block + 1) * BLOCK].tolist()).hex())
        lines.append(" ".join(words))
    with open("int8_blocks.txt", "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
