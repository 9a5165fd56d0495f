#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command where the kernel refuses io_uring with EPERM, as container runtimes do: without_io_uring.py COMMAND ...

without_io_uring.py --call NUMBER COMMAND ... refuses that call in its place."""
import ctypes
import os
import struct
import sys

IO_URING_SETUP = 425  # on every architecture
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO, EPERM = 0x7FFF0000, 0x00050000, 1


def refuse(call):
    # Offset 0 of seccomp_data is the number of the call.
    code = b"".join(struct.pack("HBBI", *line) for line in (
        (LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, call), (RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)))
    buffer = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    command, number = sys.argv[1:], IO_URING_SETUP
    if command[0] == "--call":
        command, number = command[2:], int(command[1])
    refuse(number)
    os.execvp(command[0], command)
