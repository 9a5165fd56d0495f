#!/usr/bin/env python3
"""Writes nf4.txt: the 16 numbers of nf4, as f32 bits, and what bitsandbytes' quantize_4bit makes of BLOCKS blocks of 64 elements.

A line a block: the f32 bits of its scale, and its codes in order, a hexadecimal digit each. The numbers are those of numbers() below, as in
make_block_codes.py with another block. Run with bitsandbytes 0.50.2 and the torch that README.md names, on a CPU.
"""
import numpy as np
import torch
from bitsandbytes import functional

BLOCKS = 24
BLOCK = 64


def numbers():
    """Of very different size; the blocks differ in how much."""
    state, out = 1, []
    for block in range(BLOCKS):
        for _ in range(BLOCK):
            state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            mantissa = (state >> 40) - (1 << 23)
            shift = (state >> 33) % (block + 1)
            out.append(np.float32(mantissa) * np.float32(2.0) ** np.float32(-23 - shift))
    return torch.from_numpy(np.array(out, dtype=np.float32))


def bits(number):
    return f"{np.float32(number.item()).view(np.uint32):08x}"


def main():
    packed, state = functional.quantize_4bit(numbers(), blocksize=BLOCK, compress_statistics=False, quant_type="nf4")
    codes = bytes(packed.flatten().tolist()).hex()  # the first of two codes is in the upper bits: digits are in order
    lines = [" ".join(bits(number) for number in functional.get_4bit_type("nf4", device="cpu"))]
    for block in range(BLOCKS):
        lines.append(f"{bits(state.absmax[block])} {codes[block * BLOCK:(block + 1) * BLOCK]}")
    with open("nf4.txt", "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
