// A named device's profile: the datasheet's peaks, and what calibration.h says is reached of them
// at the shapes of a table that compute_time.h interpolates.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "coordinator/hardware/catalogue.h"
#include "proto/peak_flops.h"

namespace terrace {
namespace {

// Sizes of the table. Between them the rate is interpolated, beyond them it stays.
constexpr int64_t kSides[] = {256, 1024, 2048, 4096, 8192, 16384, 65536};
constexpr int64_t kInner[] = {128, 512, 2048, 16384};
constexpr int64_t kTokens[] = {256, 1024, 2048, 4096, 8192, 32768};
constexpr int64_t kHeadSizes[] = {64, 128};

// Both directions share the root port's and the memory's queues.
constexpr double kCopyDuplexRatio = 0.9;
// Two sockets of an x86 server of the devices' time, what a vector update reaches of their memory.
constexpr double kServerMemory = 300e9;

// Devices of a node copy to and from one memory, each byte through it once.
void SetCopies(double link_bytes_per_second, v1::HardwareProfile* profile) {
  const double memory = kServerMemory / profile->ranks_per_node();
  const double copy = std::min(link_bytes_per_second, memory);
  profile->set_to_device_bytes_per_second(copy);
  profile->set_to_host_bytes_per_second(copy);
  profile->set_copy_duplex_ratio(std::min(kCopyDuplexRatio, memory / (2 * copy)));
  profile->set_host_memory_bytes_per_second(memory);
}

void AddMatmuls(const CatalogueDevice& device, const std::string& precision, double rate,
                v1::HardwareProfile* profile) {
  for (const int64_t rows : kSides) {
    for (const int64_t columns : kSides) {
      for (const int64_t inner : kInner) {
        v1::KernelRate* kernel = profile->add_kernels();
        kernel->set_kernel("matmul");
        kernel->set_precision(precision);
        kernel->set_rows(rows);
        kernel->set_columns(columns);
        kernel->set_inner(inner);
        const double share =
            MatmulShapeShare(device.multiprocessors, static_cast<double>(rows),
                             static_cast<double>(columns), static_cast<double>(inner));
        kernel->set_flops_per_second(rate * share);
      }
    }
  }
}

// The head's products with the traffic of the logits between them, of two bytes each: written and
// read by the loss; for the gradients made again, written as gradients, and read by two products.
void AddLoss(const CatalogueDevice& device, const std::string& precision, double rate,
             double memory_rate, v1::HardwareProfile* profile) {
  struct Pass {
    const char* kernel;
    double products, crossings;
  };
  for (const Pass& pass : {Pass{"lm_head_loss", 1, 2}, Pass{"lm_head_loss_grad", 3, 5}}) {
    for (const int64_t rows : kSides) {
      for (const int64_t vocabulary : kSides) {
        for (const int64_t hidden : kInner) {
          const auto n = static_cast<double>(rows), v = static_cast<double>(vocabulary),
                     h = static_cast<double>(hidden);
          const double flops = pass.products * 2 * n * v * h;
          const double share = MatmulShapeShare(device.multiprocessors, n, v, h);
          v1::KernelRate* kernel = profile->add_kernels();
          kernel->set_kernel(pass.kernel);
          kernel->set_precision(precision);
          kernel->set_rows(rows);
          kernel->set_columns(vocabulary);
          kernel->set_inner(hidden);
          kernel->set_flops_per_second(
              flops / (flops / (rate * share) + pass.crossings * 2 * n * v / memory_rate));
        }
      }
    }
  }
}

void AddAttention(const std::string& name, const std::string& precision, double rate,
                  v1::HardwareProfile* profile) {
  for (const int64_t tokens : kTokens) {
    for (const int64_t head : kHeadSizes) {
      v1::KernelRate* kernel = profile->add_kernels();
      kernel->set_kernel(name);
      kernel->set_precision(precision);
      kernel->set_rows(tokens);
      kernel->set_columns(head);
      kernel->set_inner(1);
      kernel->set_flops_per_second(
          rate * AttentionShapeShare(static_cast<double>(tokens), static_cast<double>(head)));
    }
  }
}

void AddUnfusedAttention(const std::string& precision, double matmul_rate, double memory_rate,
                         v1::HardwareProfile* profile) {
  for (const int64_t tokens : kTokens) {
    for (const int64_t head : kHeadSizes) {
      const UnfusedAttention rates =
          UnfusedAttentionRates(matmul_rate, memory_rate, static_cast<double>(tokens),
                                static_cast<double>(head), /*again=*/false);
      for (const bool grad : {false, true}) {
        v1::KernelRate* kernel = profile->add_kernels();
        kernel->set_kernel(grad ? "attention_grad" : "attention");
        kernel->set_precision(precision);
        kernel->set_rows(tokens);
        kernel->set_columns(head);
        kernel->set_inner(1);
        kernel->set_flops_per_second(grad ? rates.backward : rates.forward);
      }
    }
  }
}

// Tensor cores take half as many TF32 products as bf16 ones: 156 of 312 TFLOP/s in NVIDIA's A100
// datasheet, 494.7 of 989.4 in H100's, 653.7 of 1307.4 in AMD's of the MI300X.
double Tf32Flops(const CatalogueDevice& device) {
  return std::max(device.f32_flops_per_second, device.bf16_flops_per_second / 2);
}

// fp16 on tensor cores that have no bf16: Volta's, for which there is no fused attention either.
void AddHalf(const CatalogueDevice& device, v1::HardwareProfile* profile) {
  if (device.fp16_flops_per_second <= 0) return;
  v1::KernelRate* peak = profile->add_kernels();
  peak->set_kernel(std::string(kPeakKernel));
  peak->set_precision("fp16");
  peak->set_flops_per_second(device.fp16_flops_per_second);
  const double rate =
      device.fp16_flops_per_second * EfficiencyOf(device.generation).matmul * device.power_share;
  const double memory = profile->memory_bytes_per_second();
  AddMatmuls(device, "fp16", rate, profile);
  AddLoss(device, "fp16", rate, memory, profile);
  AddUnfusedAttention("fp16", rate, memory, profile);
}

void AddKernels(const CatalogueDevice& device, v1::HardwareProfile* profile) {
  const Efficiency& reached = EfficiencyOf(device.generation);
  const double bf16 = device.bf16_flops_per_second;
  AddMatmuls(device, "bf16", bf16 * reached.matmul * device.power_share, profile);
  AddLoss(device, "bf16", bf16 * reached.matmul * device.power_share,
          profile->memory_bytes_per_second(), profile);
  if (device.fp8_flops_per_second > 0) {
    const double fp8 = device.fp8_flops_per_second * reached.matmul_fp8 * device.power_share;
    AddMatmuls(device, "fp8", std::max(fp8, bf16 * reached.matmul * device.power_share), profile);
  }
  AddAttention("attention", "bf16", bf16 * reached.attention * device.power_share, profile);
  AddAttention("attention_grad", "bf16", bf16 * reached.attention_grad * device.power_share,
               profile);
  AddHalf(device, profile);
}

}  // namespace

v1::HardwareProfile ProfileOf(const CatalogueDevice& device, uint32_t devices_per_node) {
  const Efficiency& reached = EfficiencyOf(device.generation);
  const CatalogueLink node = *FindLink(device.node_link, CatalogueLink::Kind::kNode);
  const CatalogueLink host = *FindLink(device.host_link, CatalogueLink::Kind::kHost);
  const CatalogueLink network = *FindLink(device.network_link, CatalogueLink::Kind::kNetwork);
  v1::HardwareProfile profile;
  profile.set_name(std::string(device.name));
  profile.set_f32_flops_per_second(device.f32_flops_per_second);
  profile.set_tf32_flops_per_second(Tf32Flops(device));
  profile.set_bf16_flops_per_second(device.bf16_flops_per_second);
  profile.set_fp8_flops_per_second(device.fp8_flops_per_second);
  profile.set_memory_bytes_per_second(device.memory_bytes_per_second * reached.memory);
  profile.set_device_memory_bytes(device.memory_bytes);
  *profile.add_links() = NodeRate(node);
  *profile.add_links() = NetworkRate(network);
  // For those who do not tell scopes apart.
  profile.set_link_bytes_per_second(profile.links(0).bytes_per_second());
  profile.set_link_latency_seconds(profile.links(0).latency_seconds());
  profile.set_ranks_per_node(devices_per_node > 0 ? devices_per_node : device.node_devices);
  profile.set_instruction_overhead_seconds(kKernelGapSeconds);
  profile.set_communication_slowdown(kCommunicationSlowdown);
  SetCopies(host.bytes_per_second, &profile);
  AddKernels(device, &profile);
  return profile;
}

}  // namespace terrace
