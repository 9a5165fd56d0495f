// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/job_metrics.h"

namespace terrace {
namespace {

constexpr auto kGauge = MetricKind::kGauge;
constexpr auto kCounter = MetricKind::kCounter;

using Samples = std::vector<JobSample>;

Samples One(double value) { return {{value, ""}}; }
Samples OneIf(bool applies, double value) { return applies ? One(value) : Samples{}; }
Samples Whole(int64_t value) { return One(static_cast<double>(value)); }
Samples Timestamp(int64_t unix_ms) {
  return OneIf(unix_ms > 0, static_cast<double>(unix_ms) / 1000);
}
bool HasStepped(const JobStats& job) { return job.progress.step_seconds() > 0; }

constexpr JobSeries kJobSeries[] = {
    {{"terrace_job_step", kGauge, "", "job", "Steps done."},
     nullptr,
     [](const JobStats& job) { return Whole(job.progress.step()); }},
    {{"terrace_job_steps", kGauge, "", "job", "Steps that its spec asks for."},
     nullptr,
     [](const JobStats& job) { return Whole(job.progress.steps()); }},
    {{"terrace_job_loss", kGauge, "nats", "job", "Mean loss a token of the last step."},
     nullptr,
     [](const JobStats& job) { return OneIf(HasStepped(job), job.progress.loss()); }},
    {{"terrace_job_eval_loss", kGauge, "nats", "job",
      "Mean loss a token of the last evaluation; absent before the first."},
     nullptr,
     [](const JobStats& job) {
       return OneIf(job.progress.eval_step() > 0, job.progress.eval_loss());
     }},
    {{"terrace_job_best_eval_loss", kGauge, "nats", "job",
      "Lowest mean loss a token of all evaluations so far; absent before the first."},
     nullptr,
     [](const JobStats& job) {
       return OneIf(job.progress.best_eval_step() > 0, job.progress.best_eval_loss());
     }},
    {{"terrace_job_learning_rate", kGauge, "", "job", "Learning rate of the last step."},
     nullptr,
     [](const JobStats& job) { return OneIf(HasStepped(job), job.progress.learning_rate()); }},
    {{"terrace_job_loss_scale", kGauge, "", "job",
      "Loss scale of the last step; absent where the job has none."},
     nullptr,
     [](const JobStats& job) {
       return OneIf(job.progress.loss_scale() > 0, job.progress.loss_scale());
     }},
    {{"terrace_job_grad_norm", kGauge, "", "job",
      "Norm of the whole gradient in the last step, before clipping."},
     nullptr,
     [](const JobStats& job) { return OneIf(HasStepped(job), job.progress.grad_norm()); }},
    {{"terrace_job_step_seconds", kGauge, "seconds", "job", "Duration of the last step."},
     nullptr,
     [](const JobStats& job) { return OneIf(HasStepped(job), job.progress.step_seconds()); }},
    {{"terrace_job_tokens_per_second", kGauge, "", "job",
      "Tokens a second of the last step, all ranks together; 0 while the job does not run."},
     nullptr,
     [](const JobStats& job) { return One(job.runs ? job.progress.tokens_per_second() : 0); }},
    {{"terrace_job_samples_per_second", kGauge, "", "job",
      "Sequences of data.sequence_length tokens a second of the last step; 0 while the job does "
      "not run."},
     nullptr,
     [](const JobStats& job) {
       if (job.sequence_length <= 0) return Samples{};
       return One(job.runs
                      ? job.progress.tokens_per_second() / static_cast<double>(job.sequence_length)
                      : 0);
     }},
    {{"terrace_job_tokens", kGauge, "", "job",
      "Tokens that its state has been trained on; a restart goes back to its checkpoint's."},
     nullptr,
     [](const JobStats& job) { return Whole(job.progress.tokens()); }},
    {{"terrace_job_submitted_timestamp_seconds", kGauge, "seconds", "job",
      "Unix time of its submission."},
     nullptr,
     [](const JobStats& job) { return Timestamp(job.submitted_unix_ms); }},
    {{"terrace_job_first_step_timestamp_seconds", kGauge, "seconds", "job",
      "Unix time at which its first step ended; absent before."},
     nullptr,
     [](const JobStats& job) { return Timestamp(job.first_step_unix_ms); }},
    {{"terrace_job_training_since_timestamp_seconds", kGauge, "seconds", "job",
      "Unix time at which the coordinator heard of the first step of its present start; absent "
      "while it does not run."},
     nullptr,
     [](const JobStats& job) { return Timestamp(job.training_since_unix_ms); }},
    {{"terrace_job_checkpoint_timestamp_seconds", kGauge, "seconds", "job",
      "Unix time at which its newest checkpoint was complete, with checksums, on disk; absent "
      "before the first."},
     nullptr,
     [](const JobStats& job) { return Timestamp(job.progress.checkpoint_unix_ms()); }},
    {{"terrace_job_checkpoint_step", kGauge, "", "job",
      "Step of its newest checkpoint; 0: none yet."},
     nullptr,
     [](const JobStats& job) { return Whole(job.progress.checkpoint_step()); }},
    {{"terrace_job_checkpoint_every_steps", kGauge, "", "job",
      "Steps between two checkpoints; absent where only the last step writes one."},
     nullptr,
     [](const JobStats& job) {
       return OneIf(job.checkpoint_every_steps > 0,
                    static_cast<double>(job.checkpoint_every_steps));
     }},
    {{"terrace_job_restarted_total", kCounter, "", "job", "Restarts of this job."},
     nullptr,
     [](const JobStats& job) { return Whole(job.restarts); }},
    {{"terrace_job_restarts_without_progress", kGauge, "", "job",
      "Restarts since its newest checkpoint; max_restarts of its spec bounds them."},
     nullptr,
     [](const JobStats& job) { return Whole(job.restarts_without_progress); }},
    {{"terrace_job_hang_seconds", kGauge, "seconds", "job, rank",
      "Time since the rank that a job waits for did anything; absent while the job does not "
      "hang."},
     "rank",
     [](const JobStats& job) {
       if (job.hang_rank < 0) return Samples{};
       return Samples{{job.hang_seconds, std::to_string(job.hang_rank)}};
     }},
    {{"terrace_job_slow_ranks", kGauge, "", "job",
      "Ranks that compute far longer than their peers, who wait for them."},
     nullptr,
     [](const JobStats& job) { return Whole(job.slow_ranks); }},
    {{"terrace_job_held_seconds", kGauge, "seconds", "job",
      "Time that it has had its devices, over all its starts: what its time limit counts."},
     nullptr,
     [](const JobStats& job) { return One(job.held_seconds); }},
    {{"terrace_job_time_limit_seconds", kGauge, "seconds", "job",
      "Its time limit; absent where it has none."},
     nullptr,
     [](const JobStats& job) {
       return OneIf(job.time_limit_seconds > 0, static_cast<double>(job.time_limit_seconds));
     }},
    {{"terrace_job_spent_seconds_total", kCounter, "seconds", "job, cause",
      "Time since its submission by what it was for: training is productive, all else but paused "
      "is lost. All causes sum to terrace_job_wall_seconds_total."},
     "cause",
     [](const JobStats& job) {
       Samples samples;
       for (size_t i = 0; i < kSpentCauses.size(); ++i)
         samples.push_back({job.spent.seconds[i], std::string(kSpentCauses[i])});
       return samples;
     }},
    {{"terrace_job_wall_seconds_total", kCounter, "seconds", "job",
      "Time since its submission, until the end of its last step while it runs."},
     nullptr,
     [](const JobStats& job) { return One(job.spent.wall_seconds); }},
    {{"terrace_plan_memory_error_bytes", kGauge, "bytes", "job",
      "Arena bytes that a rank of a running job reserved beyond those its plan predicted: 0."},
     nullptr,
     [](const JobStats& job) {
       const int64_t reserved = job.progress.arena_bytes();
       return OneIf(job.runs && reserved > 0,
                    static_cast<double>(reserved - job.planned_arena_bytes));
     }},
    {{"terrace_plan_step_time_error_ratio", kGauge, "ratio", "job",
      "Seconds of a running job's last step over those that its plan predicted, less 1."},
     nullptr,
     [](const JobStats& job) {
       const bool known = job.runs && job.planned_step_seconds > 0 && HasStepped(job);
       return known ? One(job.progress.step_seconds() / job.planned_step_seconds - 1) : Samples{};
     }},
};

}  // namespace

absl::Span<const JobSeries> AllJobSeries() { return kJobSeries; }

}  // namespace terrace
