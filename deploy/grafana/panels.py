# SPDX-License-Identifier: Apache-2.0
"""What each dashboard shows: one row a panel. make_dashboards.py turns it into the JSON that Grafana reads.

A row is (title, unit, queries, description); a query is (expression, legend). "|stack" behind the title stacks areas, "|stat" shows the newest
number, "|table" the newest values by label. `J` is a job that was chosen, `R` a rank of it, `C` a coordinator.
"""
J, R, C = 'job=~"$job"', 'job=~"$job", rank=~"$rank"', 'instance=~"$coordinator"'
RATE = "[$__rate_interval]"


def quantiles(name, by="", over=RATE):
    """Median and 99th percentile of a histogram; of what happens a few times a day over all of the time shown."""
    group = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return [(f"histogram_quantile({q}, sum by ({group}) (rate({name}_bucket{{{C}}}{over})))", f"{text}{legend}")
            for q, text in ((0.5, "median"), (0.99, "99 %"))]


CLUSTER = [
    ("Jobs|stack", "short", [(f"sum by (state) (terrace_jobs{{{C}}})", "{{state}}")], "Jobs that the store knows, by state."),
    ("Running|stat", "short", [(f'sum(terrace_jobs{{{C}, state="running"}})', "running")], ""),
    ("Waiting|stat", "short", [(f"sum(terrace_jobs_pending{{{C}}})", "waiting")], ""),
    ("Workers|stat", "short", [(f"sum by (state) (terrace_workers{{{C}}})", "{{state}}")], "Away: silent for up to 3 s."),
    ("Why jobs wait|stack", "short", [(f"sum by (reason) (terrace_jobs_pending{{{C}}})", "{{reason}}")], ""),
    ("Waiting since", "s", [(f"time() - min by (reason) (terrace_jobs_pending_since_timestamp_seconds{{{C}}})", "{{reason}}")],
     "Of the job that has waited longest for this reason."),
    ("Tokens a second|stack", "short", [("sum by (job) (terrace_job_tokens_per_second)", "{{job}}")], ""),
    ("Goodput", "percentunit", [("job:terrace_goodput:ratio_rate30m", "{{job}}")], "The share of the last half hour that was training."),
    ("Restarts", "short", [(f"sum by (cause) (increase(terrace_job_restarts_total{{{C}}}[$__range]))", "{{cause}}")],
     "In the time shown, by cause."),
    ("Memory in use by tier|stack", "bytes", [("sum by (tier) (terrace_memory_reserved_bytes)", "{{tier}}")], "Reserved arenas of all ranks."),
    ("Memory of the workers", "bytes", [("sum by (tier) (terrace_memory_capacity_bytes)", "{{tier}}")], ""),
    ("Memory that is left", "bytes", [("terrace_memory_available_bytes", "{{instance}} {{tier}}")], "By node: its memory, and the fullest drive that a rank offloads to."),
    ("Energy", "short", [("cluster:terrace_tokens_per_joule:rate5m", "tokens per joule")], "Absent where neither GPUs nor processors tell their energy."),
    ("Versions|table", "short", [("count by (program, version) (terrace_build_info)", "{{program}} {{version}}")], ""),
]

JOB = [
    ("Step|stat", "short", [(f"terrace_job_step{{{J}}}", "{{job}} done"), (f"terrace_job_steps{{{J}}}", "{{job}} of")], ""),
    ("Validation loss|stat", "short", [(f"terrace_job_eval_loss{{{J}}}", "{{job}}")], ""),
    ("Tokens a second|stat", "short", [(f"terrace_job_tokens_per_second{{{J}}}", "{{job}}")], ""),
    ("Newest checkpoint|stat", "s", [(f"time() - terrace_job_checkpoint_timestamp_seconds{{{J}}}", "{{job}}")], "Its age."),
    ("Loss", "short", [(f"terrace_job_loss{{{J}}}", "{{job}}"), (f"terrace_job_eval_loss{{{J}}}", "{{job}} validation")], "Nats a token."),
    ("Learning rate", "sci", [(f"terrace_job_learning_rate{{{J}}}", "{{job}}")], ""),
    ("Gradient norm", "short", [(f"terrace_job_grad_norm{{{J}}}", "{{job}}")], "Before clipping."),
    ("Loss scale", "short", [(f"terrace_job_loss_scale{{{J}}}", "{{job}}")], "Of fp16 alone."),
    ("Tokens and samples a second", "short", [(f"terrace_job_tokens_per_second{{{J}}}", "{{job}} tokens"),
                                              (f"terrace_job_samples_per_second{{{J}}}", "{{job}} samples")], ""),
    ("Step time", "s", [(f"terrace_job_step_seconds{{{J}}}", "{{job}}")], ""),
    ("Step time beside the plan's", "percentunit", [(f"terrace_plan_step_time_error_ratio{{{J}}}", "{{job}}")], "0: as planned; 0.5: half as long again."),
    ("Where its time goes|stack", "percentunit", [(f"sum by (cause) (rate(terrace_job_spent_seconds_total{{{J}}}{RATE}))", "{{cause}}")],
     "training is productive, all else is lost."),
    ("Time by cause|table", "s", [(f"sum by (cause) (terrace_job_spent_seconds_total{{{J}}})", "{{cause}}")], "Since the submission."),
    ("Utilisation", "percentunit", [(f"terrace_mfu_ratio{{{R}}}", "{{job}} rank {{rank}}")], "Model FLOP/s over the device's peak."),
    ("Computation", "percentunit", [(f"rate(terrace_compute_seconds_total{{{R}}}{RATE})", "{{job}} rank {{rank}}")],
     "A rank far above its peers is one that they wait for."),
    ("Waiting for others", "percentunit", [(f"rate(terrace_collective_exposed_seconds_total{{{R}}}{RATE})", "{{job}} rank {{rank}}")], "Computation waits for collectives."),
    ("Restarts without progress", "short", [(f"terrace_job_restarts_without_progress{{{J}}}", "{{job}}")], ""),
    ("Waiting for checkpoints", "percentunit", [(f"rate(terrace_checkpoint_stall_seconds_total{{{R}}}{RATE})", "{{job}} rank {{rank}}")], ""),
    ("Tokens per joule", "short", [(f"job:terrace_tokens_per_joule:rate5m{{{J}}}", "{{job}}")], "Of GPUs whose driver counts their energy."),
]

MEMORY = [
    ("Device|stack", "bytes", [(f'sum by (class) (terrace_memory_bytes{{{R}, tier="device"}})', "{{class}}")], "Live buffers by class, at the moment of each scrape."),
    ("Host|stack", "bytes", [(f'sum by (class) (terrace_memory_bytes{{{R}, tier="host"}})', "{{class}}")], ""),
    ("NVMe|stack", "bytes", [(f'sum by (class) (terrace_memory_bytes{{{R}, tier="nvme"}})', "{{class}}")], ""),
    ("Hot layers|table", "bytes", [(f"topk(10, max by (tier, layer) (terrace_memory_layer_peak_bytes{{{R}}}))", "{{tier}} {{layer}}")],
     "The most that a layer's buffers hold at any moment of a step; `terrace memory JOB --by layer` says what would lower it."),
    ("Predicted and reserved", "bytes", [(f"sum by (tier) (terrace_memory_predicted_bytes{{{R}}})", "{{tier}} predicted"),
                                         (f"sum by (tier) (terrace_memory_reserved_bytes{{{R}}})", "{{tier}} reserved")], "Arenas: equal, to the byte."),
    ("Budget of admission", "bytes", [(f"terrace_memory_limit_bytes{{{R}}}", "{{job}} rank {{rank}} {{tier}}")], "0: none."),
    ("Plan's error|stat", "bytes", [(f"terrace_plan_memory_error_bytes{{{J}}}", "{{job}}")], "Reserved less predicted: 0."),
    ("Outside the arenas", "bytes", [(f"terrace_memory_external_bytes{{{R}}}", "{{job}} rank {{rank}}"),
                                     (f"terrace_memory_external_allowed_bytes{{{R}}}", "{{job}} rank {{rank}} allowed")], "Libraries, network, the process itself. What grows here is a leak."),
    ("Share of what is allowed outside", "percentunit", [(f"rank:terrace_memory_external:ratio{{{R}}}", "{{job}} rank {{rank}}")], ""),
    ("Allocator", "bytes", [(f"terrace_allocator_{name}_bytes{{{R}}}", f"{{{{job}}}} rank {{{{rank}}}} {name.replace('_', ' ')}")
                            for name in ("reserved", "active", "allocated", "requested", "largest_free_block", "step_peak")], "In PyTorch's words."),
    ("Fragmentation", "percentunit", [(f"terrace_allocator_fragmentation_ratio{{{R}}}", "{{job}} rank {{rank}} of reserved"),
                                      (f"terrace_allocator_free_fragmentation_ratio{{{R}}}", "{{job}} rank {{rank}} of free")],
     "1 - allocated / reserved; 1 - largest free block / free. Above 30 % with retries it costs memory and time."),
    ("Fragmentation over the time shown|table", "percentunit", [(f"max_over_time(terrace_allocator_fragmentation_ratio{{{R}}}[$__range])", "{{job}} rank {{rank}} most"),
                                                               (f"avg_over_time(terrace_allocator_fragmentation_ratio{{{R}}}[$__range])", "{{job}} rank {{rank}} mean")], ""),
    ("Retries and failures", "short", [(f"increase(terrace_allocator_retries_total{{{R}}}[$__range])", "{{job}} rank {{rank}} retries"),
                                       (f"increase(terrace_allocator_ooms_total{{{R}}}[$__range])", "{{job}} rank {{rank}} out of memory")], ""),
    ("GPU by its driver and by the plan", "bytes", [(f"terrace_memory_driver_bytes{{{R}}}", "{{job}} rank {{rank}} driver"),
                                                    (f"terrace_memory_planned_bytes{{{R}}}", "{{job}} rank {{rank}} plan")], "0 by the driver: nobody counts."),
    ("Locked host memory", "bytes", [(f"terrace_memory_host_pinned_bytes{{{R}}}", "{{job}} rank {{rank}}")], ""),
    ("Smaller layouts", "short", [(f"sum by (rung) (terrace_job_adjustments_total{{{C}}})", "{{rung}}")],
     "Jobs that went on with a smaller layout after memory ran out, by what was given up."),
]

OFFLOAD = [
    ("Computation waits", "percentunit", [(f"rank:terrace_offload_stall:ratio_rate5m{{{R}}}", "{{job}} rank {{rank}}")], "For copies between tiers."),
    ("Bytes a second|stack", "Bps", [(f"sum by (tier, direction) (rate(terrace_offload_bytes_total{{{R}}}{RATE}))", "{{tier}} {{direction}}")], "Write: away from the device."),
    ("Busy with copies", "percentunit", [(f"rate(terrace_offload_seconds_total{{{R}}}{RATE})", "{{job}} rank {{rank}} {{tier}} {{direction}}")], "At 100 % the way between tiers is the limit."),
    ("By rank", "Bps", [(f"sum by (job, rank) (rate(terrace_offload_bytes_total{{{R}}}{RATE}))", "{{job}} rank {{rank}}")], ""),
    ("Drive writes a day", "short", [("instance:terrace_nvme_drive_writes_per_day:rate1h", "{{instance}}")], "Times its capacity. Most drives are made for less than one."),
    ("Bytes written to NVMe|stat", "bytes", [(f'sum(increase(terrace_offload_bytes_total{{{R}, tier="nvme", direction="write"}}[$__range]))', "in the time shown")], ""),
    ("Space that is left", "bytes", [('terrace_memory_available_bytes{tier="nvme"}', "{{instance}} left"),
                                     ('terrace_memory_capacity_bytes{tier="nvme"}', "{{instance}} in all")], ""),
    ("Offloaded|stack", "bytes", [(f'sum by (tier, class) (terrace_memory_bytes{{{R}, tier=~"host|nvme"}})', "{{tier}} {{class}}")], ""),
    ("Locked host memory", "bytes", [(f"terrace_memory_host_pinned_bytes{{{R}}}", "{{job}} rank {{rank}}")], "Copies from memory that is not locked take three times as long."),
    ("Host memory that is left", "bytes", [('terrace_memory_available_bytes{tier="host"}', "{{instance}}")], ""),
]

CONTROL_PLANE = [
    ("Daemons|table", "short", [('up{job=~"terrace-.*"}', "{{job}} {{instance}}")], "1: it answers scrapes."),
    ("Workers by state|stack", "short", [(f"sum by (state) (terrace_workers{{{C}}})", "{{state}}")], ""),
    ("Workers that reach the coordinator", "short", [("terrace_worker_connected", "{{instance}}")], ""),
    ("Pass of the scheduler", "s", quantiles("terrace_scheduler_pass_seconds"), "Over all jobs and workers."),
    ("Passes", "ops", [(f"sum(rate(terrace_scheduler_pass_seconds_count{{{C}}}{RATE}))", "passes")], "One after each batch of messages."),
    ("Write into the store", "s", quantiles("terrace_store_write_seconds"), ""),
    ("Calls by method", "ops", [(f"sum by (method) (rate(terrace_rpc_seconds_count{{{C}}}{RATE}))", "{{method}}")], ""),
    ("Calls that fail", "ops", [(f'sum by (method, code) (rate(terrace_rpc_seconds_count{{{C}, code!="OK"}}{RATE}))', "{{method}} {{code}}")], ""),
    ("Time of calls", "s", quantiles("terrace_rpc_seconds", "method"), ""),
    ("From submission to placement", "s", quantiles("terrace_job_queue_seconds", over="[$__range]"), ""),
    ("From submission to the first step", "s", quantiles("terrace_job_first_step_seconds", over="[$__range]"), ""),
    ("Failure: until it was noticed", "s", quantiles("terrace_failure_detection_seconds", over="[$__range]"), ""),
    ("Failure: until the next step ended", "s", quantiles("terrace_failure_recovery_seconds", over="[$__range]"), ""),
    ("Jobs without series|stat", "short", [(f"sum(terrace_jobs_without_series{{{C}}})", "jobs")], "Beyond the first 1,000."),
]

# What a panel says where its query finds nothing: the first row whose part is in all of its queries.
EMPTY = (
    ("tokens_per_joule", "No energy: neither the GPUs' driver nor the processors tell theirs"),
    ("eval_loss", "No evaluation yet: train.eval_every_steps sets them"),
    ("checkpoint_timestamp", "No checkpoint yet: checkpoint.every_steps sets them"),
    ("loss_scale", "No loss scale: only fp16 has one"),
    ("goodput", "No job ran in the last half hour"),
    ("jobs_pending", "No job waits"),
    ('tier="host"})', "Nothing of this job rests on the host"),
    ('tier="nvme"})', "Nothing of this job rests on NVMe"),
    ('tier=~"host|nvme"', "Nothing of this job is offloaded: layout.offload sets it"),
    ("offload_", "Nothing of this job is offloaded: layout.offload sets it"),
    ("nvme", "No NVMe is in use: resources.nvme names the folder"),
    ("adjustments", "Memory never ran out"),
    ("restarts_total", "Nothing restarted in the time shown"),
    ("failure_", "Nothing failed in the time shown"),
    ('code!="OK"', "No call failed in the time shown"),
    ("rpc_seconds", "No call was made in the time shown"),
    ("scheduler_pass", "The scheduler had nothing to do in the time shown"),
    ("queue_seconds", "No job was placed in the time shown"),
    ("first_step", "No job began in the time shown"),
    ("store_write", "Nothing was written in the time shown"),
    ("spent_seconds", "No job was chosen that ran in the time shown"),
    ("$job", "No job was chosen that ran in the time shown"),
    ("", "No coordinator or worker was scraped in the time shown"),
)


def reason_if_empty(queries):
    return next(reason for part, reason in EMPTY if all(part in expression for expression, _ in queries))


# uid -> (title, variables, panels)
DASHBOARDS = {
    "terrace-cluster": ("Terrace: cluster", ("coordinator",), CLUSTER),
    "terrace-job": ("Terrace: job", ("coordinator", "job", "rank"), JOB),
    "terrace-memory": ("Terrace: memory", ("coordinator", "job", "rank"), MEMORY),
    "terrace-offload": ("Terrace: offload and NVMe", ("coordinator", "job", "rank"), OFFLOAD),
    "terrace-control-plane": ("Terrace: control plane", ("coordinator",), CONTROL_PLANE),
}
