#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory as the kernel shows it: the arenas that a rank maps are the bytes that the plan names, what the process needs
outside of them is small, and nothing grows while it trains.

An arena lies behind a guard page that carries its name; it begins on a page and ends on one, so it is the planned bytes rounded
up to pages of 4096 bytes. Pages that have second addresses are mapped again behind it: other addresses, no other memory.
"""
import pathlib
import re
import unittest

from support import GPT, LLAMA, TerraceTest

PAGE = 4096
OUTSIDE_LIMIT = 200 * 10**6
GROWTH_LIMIT = 1 << 20  # bytes between an early and a late step: statistics of the allocator, not a leak


class Mapping:
    def __init__(self, head):
        self.span, self.permissions, offset, *_ = head
        self.begin, self.end = (int(part, 16) for part in self.span.split("-"))
        self.offset = int(offset, 16)
        self.bytes = self.end - self.begin
        self.path = head[5] if len(head) > 5 else ""
        self.resident = 0


def mappings_of(pid):
    mappings = []
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            mappings.append(Mapping(line.split(None, 5)))
        elif line.startswith("Rss:"):
            mappings[-1].resident = int(line.split()[1]) * 1024
    return mappings


def memory_of(pid):
    """(mapped, resident) bytes of the arenas, and what is resident outside of them. Files that are only read, as the token
    cache is, belong to the page cache and not to the process; libraries do count."""
    arenas, outside, start, end = [], 0, 0, 0  # of the arena that goes on
    for mapping in mappings_of(pid):
        of_arena = mapping.path.startswith("/memfd:terrace-arena-")
        if of_arena and mapping.permissions.startswith("---"):
            start = end = mapping.end
        elif mapping.begin == end and mapping.permissions.startswith("rw"):
            again = of_arena and mapping.offset != mapping.begin - start
            end = mapping.end
            if not again:
                arenas.append(mapping)
            elif mapping.offset + mapping.bytes > sum(arena.bytes for arena in arenas if arena.begin >= start):
                raise AssertionError(f"{mapping.span} is a second address of memory that has no first one")
        elif ".tokens" not in mapping.path:
            outside += mapping.resident
    return sum(arena.bytes for arena in arenas), sum(arena.resident for arena in arenas), outside


def pages(size):
    return (size + PAGE - 1) // PAGE * PAGE


class MemoryTest(TerraceTest):
    def observe(self, changes, look):
        """Trains, calls look(pid, plan's stage memory) for every rank while it does, and stops the job."""
        running = self.start("run", self.job({"train.steps": 100_000, **changes}), "-o", "json")
        plan = running.wait_for(lambda event: event["event"] == "plan")["plan"]
        running.wait_for_step(20)
        ranks = self.rank_pids()
        self.assertEqual(len(ranks), plan["layout"]["ranks"])
        for pid in ranks:
            look(pid, plan["memory"][0], running)
        running.end()

    def check(self, pid, planned, _):
        mapped, resident, outside = memory_of(pid)
        self.assertEqual(mapped, pages(int(planned["arena_bytes"])))
        self.assertEqual(resident, mapped, "all of it was touched before the first step")
        self.assertLess(outside, OUTSIDE_LIMIT)
        print(f"  arenas {mapped} bytes as planned, outside of them {outside / 1e6:.1f} MB")

    def test_arenas_are_what_the_plan_says(self):
        wide = {**GPT, "n_embd": 64, "n_head": 4, "n_layer": 3}
        cases = {"gpt fp32": {},
                 "gpt bf16": {"train.precision": "bf16"},
                 "gpt wider, accumulation": {"model.config": wide, "layout.micro_batch": 2},
                 "gpt, two ranks": {"resources.devices_per_node": 2},
                 "llama fp32": {"model.config": LLAMA},
                 "llama bf16, two ranks": {"model.config": LLAMA, "train.precision": "bf16", "resources.devices_per_node": 2}}
        for name, changes in cases.items():
            with self.subTest(name):
                self.observe(changes, self.check)

    def test_preset_of_ten_million_parameters(self):
        changes = {"model.config": "gpt-bytes-10m", "data.sequence_length": 256, "train.global_batch": 2,
                   "train.precision": "bf16", "resources.threads_per_device": 2}
        self.observe(changes, self.check)

    def test_nothing_grows_from_step_20_to_step_200(self):
        def look(pid, _, running):
            before = memory_of(pid)
            running.wait_for_step(200)
            after = memory_of(pid)
            self.assertEqual(before[:2], after[:2])
            self.assertLess(after[2] - before[2], GROWTH_LIMIT)

        self.observe({"train.eval_every_steps": 10}, look)


if __name__ == "__main__":
    unittest.main(verbosity=2)
