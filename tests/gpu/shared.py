#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several ranks on one GPU, which communicate through pinned host memory: every kind of layout trains as one rank does, to the
rounding of sums in another order."""
import sys

import models
import part
from parity import worst

LAYOUTS = {"dp 2": {"dp": 2}, "zero 3": {"dp": 2, "zero": 3}, "tp 2": {"tp": 2}, "pp 2": {"pp": 2}, "cp 2, ring": {"cp": 2},
           "cp 2, ulysses": {"cp": 2, "context_type": "ulysses"}, "dp 2 x tp 2": {"dp": 2, "tp": 2}}
BOUND = 5e-5  # of the loss, relative: f32 sums in another order, through ten steps of Adam


def check(checks):
    rehearsal = checks.options.device == "cpu"
    text = part.text_file(checks.folder)
    config = (models.TINY if rehearsal else models.SMALL)["llama"]

    def train(layout, ranks):
        return checks.job(models.job(text, config, checks.options.device, sequence=32 if rehearsal else 128,
                                     layout={"micro_batch": 2, **layout}, resources={"devices_per_node": ranks})).run().steps
    alone = train({}, 1)
    for name, layout in LAYOUTS.items():
        ranks = layout.get("dp", 1) * layout.get("tp", 1) * layout.get("pp", 1) * layout.get("cp", 1)
        steps = train(layout, ranks)
        error = worst(steps, alone, "loss")
        checks.add(error <= BOUND, layout=name, ranks=ranks, loss=f"{error:.1e}", bound=f"{BOUND:.0e}",
                   tokens_per_second=round(float(steps[-1]["tokens_per_second"])))


if __name__ == "__main__":
    options = part.parser(__doc__, 100).parse_args()
    sys.exit(part.Part("shared", options, ("layout", "ranks", "loss", "bound", "tokens_per_second")).main(check))
