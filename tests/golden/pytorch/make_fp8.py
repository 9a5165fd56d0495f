#!/usr/bin/env python3
"""Writes fp8.txt: what torch.float8_e4m3fn and torch.float8_e5m2 make of all 256 codes, and of many numbers.

A line a format: its name, the f32 bits of its 256 codes, and for each of LOW a hash (FNV-1a, 64 bits) of the codes of all f32
numbers whose upper 16 bits are any and whose lower 16 are that, in order of the upper bits, but for NaNs and magnitudes
beyond the format's largest, which PyTorch does not saturate. Run with the torch that README.md names.
"""
import torch

LOW = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def main():
    lines = []
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
        values = codes.to(torch.float32).view(torch.int32).tolist()
        words = [name] + [f"{v & 0xffffffff:08x}" for v in values]
        for low in LOW:
            upper = torch.arange(1 << 16, dtype=torch.int64)
            bits = upper * 65536 + low
            numbers = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)
            numbers = numbers[numbers.abs() <= torch.finfo(dtype).max]
            words.append(f"{fnv1a(bytes(numbers.to(dtype).view(torch.uint8).tolist())):016x}")
        lines.append(" ".join(words))
    with open("fp8.txt", "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
