# SPDX-License-Identifier: Apache-2.0
"""Real memory control groups for tests, of version 1 or 2, where the machine lets them be made."""
import pathlib

ROOTS = (pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup"))
LIMITS = ("memory.limit_in_bytes", "memory.max")


def memory_group(test):
    """(a new group, the file of its limit), removed after the test; skips it where there can be none."""
    for root in ROOTS:
        group = root / f"terrace-test-{test.mark}"
        try:
            group.mkdir()
        except OSError:
            continue
        for limit in LIMITS:
            if (group / limit).exists():
                test.addCleanup(group.rmdir)
                return group, group / limit
        group.rmdir()
    test.skipTest("memory control groups cannot be made here: neither " + " nor ".join(str(root) for root in ROOTS) +
                  " takes a new one with a memory limit (needs root and the memory controller)")
    return None


def used_bytes(group):
    for name in ("memory.usage_in_bytes", "memory.current"):
        if (group / name).exists():
            return int((group / name).read_text())
    raise AssertionError(f"{group} does not say what it uses")


def oom_kills(group):
    """How often the kernel's OOM killer has been here."""
    for name in ("memory.oom_control", "memory.events"):
        if (group / name).exists():
            lines = dict(line.split() for line in (group / name).read_text().splitlines())
            return int(lines["oom_kill"])
    raise AssertionError(f"{group} does not count OOM kills")
