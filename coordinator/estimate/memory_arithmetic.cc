// SPDX-License-Identifier: Apache-2.0
#include "coordinator/estimate/memory_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "coordinator/layout/dealing.h"

namespace terrace {
namespace {

// A quantised block of 64 weights has a scale of 8 bits, and 256 of these one of 32:
// 4 + 8 / 64 + 32 / (64 * 256) bits.
constexpr double kNf4Bits = 4 + 8.0 / 64 + 32.0 / (64 * 256);

int64_t Rounded(double bytes) { return static_cast<int64_t>(std::llround(bytes)); }

bool IsLayerMatrix(const Tensor& tensor) { return tensor.layer >= 0 && tensor.shape.size() >= 2; }

constexpr kernels::Format kMomentFormats[] = {kernels::Format::kF32, kernels::Format::kBF16,
                                              kernels::Format::kInt8};

std::string Over(int64_t devices) { return devices == 1 ? "" : absl::StrCat(" / ", devices); }

class Estimator {
 public:
  explicit Estimator(const EstimateInput& input)
      : in_(input),
        config_(input.model->config),
        parameters_(static_cast<double>(input.model->Parameters())) {
    for (const Tensor& tensor : input.model->tensors) {
      matrices_ += IsLayerMatrix(tensor) ? static_cast<double>(tensor.elements()) : 0;
      const int64_t sides = tensor.shape.size() < 2 ? 0 : tensor.shape[0] + tensor.shape[1];
      sides_ += static_cast<double>(sides);
      vectors_ += sides > 0 ? 0 : static_cast<double>(tensor.elements());
    }
  }

  EstimateSection Training() const {
    EstimateSection section = {
        .name = "training",
        .note = absl::StrCat(StatesText(), "; N parameters on ", in_.devices,
                             in_.devices == 1 ? " device" : " devices, per device")};
    const bool wholes = UpdatesWholes(*in_.optimizer);
    for (int stage = 0; stage <= (wholes ? 2 : 3); ++stage) {
      const std::string name = stage == 0 ? "no sharding" : absl::StrCat("ZeRO ", stage);
      section.cases.push_back(wholes && stage > 0 ? Dealt(name, stage) : States(name, stage));
    }
    if (wholes) return section;
    section.cases.push_back(Offloaded("ZeRO 2, optimizer on host", 2, /*parameters=*/false, false));
    section.cases.push_back(Offloaded("ZeRO 3, all states on host", 3, true, false));
    section.cases.push_back(Offloaded("ZeRO 3, all states on NVMe", 3, true, true));
    return section;
  }

  // Rules that keep as many moments are one row for each format.
  EstimateSection Optimizers() const {
    EstimateSection section = {
        .name = "optimizers",
        .note =
            "all states of training with each train.optimizer.name and formats.moments, "
            "without sharding"};
    for (int moments = kernels::kMomentsMax; moments >= 0; --moments) {
      std::vector<std::string> names;
      const kernels::OptimizerRow* one = nullptr;
      for (const kernels::OptimizerRow& rule : kernels::kOptimizerRows) {
        if (rule.moments != moments || rule.whole_matrix || rule.factored) continue;
        one = &rule;
        names.emplace_back(rule.name);
      }
      const std::string name = absl::StrJoin(names, ", ");
      if (moments == 0) section.cases.push_back(WithOptimizer(name, *one, kMomentFormats[0]));
      for (const kernels::Format format : kMomentFormats) {
        if (moments == 0) continue;
        section.cases.push_back(WithOptimizer(
            absl::StrCat(name, "; ", Absl(kernels::RowOf(format).name)), *one, format));
      }
    }
    for (const kernels::OptimizerRow& rule : kernels::kOptimizerRows) {
      for (const kernels::Format format : kMomentFormats) {
        if (!rule.whole_matrix || format == kernels::Format::kInt8) continue;
        section.cases.push_back(WithOptimizer(
            absl::StrCat(Absl(rule.name), " and adamw; ", Absl(kernels::RowOf(format).name)), rule,
            format));
      }
    }
    for (const kernels::OptimizerRow& rule : kernels::kOptimizerRows) {
      for (const kernels::Format format : kMomentFormats) {
        const bool averages = MomentsOf(rule) > 0;
        const bool none = !averages && format != kernels::Format::kF32;
        if (!rule.factored || format == kernels::Format::kInt8 || none) continue;
        const std::string text =
            averages ? absl::StrCat("; ", Absl(kernels::RowOf(format).name)) : ", without beta1";
        section.cases.push_back(WithOptimizer(absl::StrCat(Absl(rule.name), text), rule, format));
      }
    }
    return section;
  }

  EstimateSection Activations() const {
    EstimateSection section = {
        .name = "activations",
        .note = absl::StrCat("of ", in_.batch, " x ", in_.sequence_length,
                             " tokens (T), flash attention; added to each row of training")};
    section.cases.push_back({"recompute none", {Kept("none")}, {}, {}});
    section.cases.push_back({"recompute selective", {Kept("selective")}, {}, {}});
    section.cases.push_back({"recompute full", {Kept("full")}, {}, {}});
    return section;
  }

  EstimateSection Lora() const {
    const double adapters = static_cast<double>(LoraParameters(*in_.model, in_.lora_rank));
    EstimateSection section = {
        .name = "lora",
        .note = absl::StrCat("rank ", in_.lora_rank, " on all matrices of the layers: P = ",
                             static_cast<int64_t>(adapters), " trained parameters")};
    section.cases.push_back({"LoRA", {Part("frozen weights", "2 N", 2 * parameters_)}, {}, {}});
    AddAdapters(adapters, &section.cases.back());
    return section;
  }

  EstimateSection Qlora() const {
    const double adapters = static_cast<double>(LoraParameters(*in_.model, in_.lora_rank));
    double matrices = 0, largest = 0;
    for (const Tensor& tensor : in_.model->tensors) {
      if (!IsLayerMatrix(tensor)) continue;
      matrices += static_cast<double>(tensor.elements());
      largest = std::max(largest, static_cast<double>(tensor.elements()));
    }
    EstimateSection section = {
        .name = "qlora",
        .note = "matrices of the layers in NF4 (Q of the parameters), the rest in bf16"};
    section.cases.push_back({"QLoRA",
                             {Part("frozen weights", "4.127 / 8 Q + 2 (N - Q)",
                                   kNf4Bits / 8 * matrices + 2 * (parameters_ - matrices)),
                              Part("one matrix in bf16", "2 x the largest", 2 * largest)},
                             {},
                             {}});
    AddAdapters(adapters, &section.cases.back());
    return section;
  }

  EstimateSection Inference() const {
    const double tokens = static_cast<double>(in_.batch * in_.sequence_length);
    EstimateSection section = {
        .name = "inference",
        .note = absl::StrCat(in_.batch, in_.batch == 1 ? " sequence of " : " sequences of ",
                             in_.sequence_length, " tokens, KV cache in bf16")};
    const auto with_cache = [&](const char* name, EstimatedBytes weights) {
      section.cases.push_back(
          {name,
           {std::move(weights), Part("KV cache",
                                     absl::StrCat("2 x 2 x ", config_.kv_heads, " x ",
                                                  config_.head_dim, " x ", config_.layers, " T"),
                                     KvBytesPerToken(*in_.model, in_.sequence_length, 2) * tokens)},
           {},
           {}});
    };
    with_cache("bf16 weights", Part("weights", "2 N", 2 * parameters_));
    with_cache("8-bit weights", Part("weights", "N", parameters_));
    with_cache("4-bit weights", Part("weights", "N / 2", parameters_ / 2));
    return section;
  }

 private:
  static EstimatedBytes Part(std::string what, std::string formula, double bytes) {
    return {std::move(what), std::move(formula), Rounded(bytes)};
  }

  double weight_bytes() const { return in_.bf16 ? 2 : 4; }
  double gradient_bytes() const { return in_.gradients->BitsAnElement() / 8; }
  double optimizer_bytes() const { return OptimizerBytes(*in_.optimizer, *in_.moments); }
  // A master where weights are in bf16, and the moments that the rule keeps: of a parameter on
  // average, and of one of an adapter.
  double OptimizerBytes(const kernels::OptimizerRow& rule,
                        const kernels::FormatRow& moments) const {
    return StateBytes(MomentsEach(rule), moments) +
           (rule.factored ? 4 * (Means(rule) * sides_ + vectors_) / parameters_ : 0);
  }
  // Both matrices of an adapter have as many rows or columns as its rank.
  double AdapterBytes() const {
    const kernels::OptimizerRow& rule = *in_.optimizer;
    const double bytes = StateBytes(MomentsOf(rule), *in_.moments);
    if (!rule.factored) return bytes;
    double sides = 0;
    for (const Tensor& tensor : in_.model->tensors) {
      if (IsLayerMatrix(tensor))
        sides += static_cast<double>(tensor.shape[0] + tensor.shape[1] + 2 * in_.lora_rank);
    }
    return bytes +
           4 * Means(rule) * sides / static_cast<double>(LoraParameters(*in_.model, in_.lora_rank));
  }
  // Counts moments of the size of the weights: Adafactor without beta1 has none.
  static int MomentsOf(const kernels::OptimizerRow& rule) {
    if (!rule.factored) return rule.moments;
    return rule.rule == kernels::OptimizerRule::kCame ? 1 : 0;
  }
  // Counts means by row and column: those of squares and, with errors, those of errors.
  static int Means(const kernels::OptimizerRow& rule) {
    return rule.rule == kernels::OptimizerRule::kCame ? 2 : 1;
  }
  double StateBytes(double count, const kernels::FormatRow& moments) const {
    return (in_.bf16 ? 4 : 0) + count * moments.BitsAnElement() / 8;
  }
  // AdamW keeps the moments of what a rule of whole matrices leaves out.
  double MomentsEach(const kernels::OptimizerRow& rule) const {
    if (!rule.whole_matrix) return MomentsOf(rule);
    const int others = kernels::RowOf(kernels::OptimizerRule::kAdamw).moments;
    return others - (others - rule.moments) * matrices_ / parameters_;
  }
  std::string StatesText() const {
    constexpr const char* kMoments[] = {"no moments", " m", " m and v"};
    const int moments = MomentsOf(*in_.optimizer);
    if (in_.optimizer->whole_matrix) {
      return absl::StrCat(in_.bf16 ? "bf16" : "f32", " weights, ", Absl(in_.gradients->name),
                          " gradients, ", in_.bf16 ? "f32 master weights, " : "",
                          Absl(in_.moments->name), " m of layers' matrices (",
                          Absl(in_.optimizer->name), "), m and v of the rest (adamw)");
    }
    return absl::StrCat(in_.bf16 ? "bf16" : "f32", " weights, ", Absl(in_.gradients->name),
                        " gradients, ", in_.bf16 ? "f32 master weights, " : "",
                        moments > 0 ? Absl(in_.moments->name) : "", kMoments[moments],
                        in_.optimizer->factored ? ", f32 means of rows and columns" : "", " (",
                        Absl(in_.optimizer->name), ")");
  }

  // `per` bytes a parameter, on all devices or shared by them.
  EstimatedBytes State(const char* what, double per, bool shared) const {
    const double devices = shared ? static_cast<double>(in_.devices) : 1;
    return Part(what, absl::StrCat(per, " N", shared ? Over(in_.devices) : ""),
                per * parameters_ / devices);
  }

  EstimateCase WithOptimizer(const std::string& name, const kernels::OptimizerRow& rule,
                             kernels::Format format) const {
    return {name,
            {State("weights", weight_bytes(), false), State("gradients", gradient_bytes(), false),
             State("optimizer", OptimizerBytes(rule, kernels::RowOf(format)), false)},
            {},
            {}};
  }

  EstimateCase States(const std::string& name, int stage) const {
    return {name,
            {State("weights", weight_bytes(), stage >= 3),
             State("gradients", gradient_bytes(), stage >= 2),
             State("optimizer", optimizer_bytes(), stage >= 1)},
            {},
            {}};
  }

  // The optimizer's states of one tensor, by its own rule.
  double OptimizerBytes(const Tensor& tensor) const {
    const bool others = in_.optimizer->whole_matrix && !IsLayerMatrix(tensor);
    const kernels::OptimizerRow& rule =
        others ? kernels::RowOf(kernels::OptimizerRule::kAdamw) : *in_.optimizer;
    const auto elements = static_cast<double>(tensor.elements());
    const double bytes = StateBytes(MomentsOf(rule), *in_.moments) * elements;
    if (!rule.factored) return bytes;
    const bool matrix = tensor.shape.size() >= 2;
    return bytes + 4 * (matrix
                            ? Means(rule) * static_cast<double>(tensor.shape[0] + tensor.shape[1])
                            : elements);
  }

  // ZeRO 1 or 2 of a rule that updates tensors as wholes (layout/dealing.h).
  EstimateCase Dealt(const std::string& name, int stage) const {
    const auto devices = static_cast<double>(in_.devices);
    double padded = 0, own = 0, optimizer = 0;  // parameters of weights, of own gradients; bytes
    std::map<std::tuple<TensorRole, int64_t, int64_t>, std::vector<const Tensor*>> alike;
    for (const Tensor& tensor : in_.model->tensors) {
      const auto elements = static_cast<double>(tensor.elements());
      if (IsLayerMatrix(tensor)) {
        alike[{tensor.role, tensor.shape[0], tensor.shape[1]}].push_back(&tensor);
        continue;
      }
      const double ranks = in_.optimizer->factored ? 1 : devices;  // that share it
      padded += elements;
      own += elements / ranks;
      optimizer += OptimizerBytes(tensor) / ranks;
    }
    for (const auto& [kind, tensors] : alike) {
      const Deal deal = DealOf(static_cast<int64_t>(tensors.size()), in_.devices);
      const auto elements = static_cast<double>(tensors[0]->elements());
      const auto have = static_cast<double>(deal.rounds + deal.kept);
      padded += elements * static_cast<double>(deal.rounds * in_.devices + deal.kept);
      own += elements * have;
      optimizer += OptimizerBytes(*tensors[0]) * have;
    }
    const std::string dealt = absl::StrCat(" N, matrices dealt to ", in_.devices);
    const auto part = [&](const char* what, double each, double bytes) {
      return Part(what, absl::StrCat(each, dealt), bytes);
    };
    return {name,
            {part("weights", weight_bytes(), weight_bytes() * padded),
             part("gradients", gradient_bytes(), gradient_bytes() * (stage == 2 ? own : padded)),
             part("optimizer", optimizer_bytes(), optimizer)},
            {},
            {}};
  }

  // What computes needs two layers there, and the largest table.
  EstimatedBytes Working() const {
    double layers = 0, table = 0;
    for (const Tensor& tensor : in_.model->tensors) {
      const auto elements = static_cast<double>(tensor.elements());
      if (tensor.layer >= 0) layers += elements;
      if (tensor.layer < 0) table = std::max(table, elements);
    }
    const double two = 2 * layers / static_cast<double>(std::max<int64_t>(1, config_.layers));
    return Part("weights", absl::StrCat(weight_bytes(), " x two layers or a table"),
                weight_bytes() * std::max(two, table));
  }

  EstimateCase Offloaded(const std::string& name, int stage, bool parameters, bool nvme) const {
    EstimateCase one = {name, {}, {}, {}};
    std::vector<EstimatedBytes>& far = nvme ? one.nvme : one.host;
    one.device.push_back(parameters ? Working() : State("weights", weight_bytes(), stage >= 3));
    if (parameters) far.push_back(State("weights", weight_bytes(), true));
    far.push_back(State("gradients", gradient_bytes(), true));
    far.push_back(State("optimizer", optimizer_bytes(), true));
    return one;
  }

  void AddAdapters(double adapters, EstimateCase* one) const {
    one->device.push_back(Part("adapters", "2 P", 2 * adapters));
    const double gradient = gradient_bytes(), optimizer = AdapterBytes();
    one->device.push_back(Part("gradients", absl::StrCat(gradient, " P"), gradient * adapters));
    one->device.push_back(Part("optimizer", absl::StrCat(optimizer, " P"), optimizer * adapters));
    one->device.push_back(Kept("none"));
  }

  // Bytes a token and layer: both norms' inputs and outputs (4 h), q, k, v and the attention's
  // result, the MLP's inner values, and the attention's statistics in fp32.
  EstimatedBytes Kept(std::string_view recompute) const {
    const double element = weight_bytes();
    const double tokens = static_cast<double>(in_.batch * in_.sequence_length);
    const double h = static_cast<double>(config_.hidden);
    const double q = static_cast<double>(config_.heads * config_.head_dim);
    const double kv = static_cast<double>(config_.kv_heads * config_.head_dim);
    const int inner = config_.mlp == MlpKind::kGated ? 3 : 2;
    const bool selective = recompute == "selective";
    double elements = 0;
    std::string formula;
    if (recompute == "full") {
      elements = h;
      formula = absl::StrCat(element, " T L h");
    } else {
      const int norms = selective ? 2 : 4, kept = selective ? inner - 1 : inner;
      elements = norms * h + 2 * q + 2 * kv + kept * static_cast<double>(config_.intermediate);
      formula =
          absl::StrCat("T L (", element, " (", norms, " h + 2 q + 2 kv + ", kept, " f) + 4 heads)");
    }
    const double statistics = recompute == "full" ? 0 : 4 * static_cast<double>(config_.heads);
    return Part("activations", std::move(formula),
                tokens * static_cast<double>(config_.layers) * (element * elements + statistics));
  }

  const EstimateInput& in_;
  const ModelConfig& config_;
  const double parameters_;
  double matrices_ = 0;  // parameters of layers' matrices
  // These add up all tensors: rows and columns of matrices, and elements of vectors.
  double sides_ = 0, vectors_ = 0;
};

}  // namespace

int64_t EstimateCase::Total(const std::vector<EstimatedBytes>& parts) {
  int64_t bytes = 0;
  for (const EstimatedBytes& part : parts) bytes += part.bytes;
  return bytes;
}

int64_t LoraParameters(const Model& model, int64_t rank) {
  int64_t parameters = 0;
  for (const Tensor& tensor : model.tensors) {
    if (IsLayerMatrix(tensor)) parameters += rank * (tensor.shape[0] + tensor.shape[1]);
  }
  return parameters;
}

double KvBytesPerToken(const Model& model, int64_t length, int64_t element_bytes) {
  const ModelConfig& config = model.config;
  double layers = 0;  // whole ones
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const int64_t window = config.window.empty() ? 0 : config.window[layer];
    layers += window > 0 && window < length
                  ? static_cast<double>(window) / static_cast<double>(length)
                  : 1;
  }
  return 2 * layers * static_cast<double>(config.kv_heads * config.head_dim * element_bytes);
}

std::vector<EstimateSection> EstimateMemory(const EstimateInput& input) {
  const Estimator estimator(input);
  return {estimator.Training(), estimator.Optimizers(), estimator.Activations(),
          estimator.Lora(),     estimator.Qlora(),      estimator.Inference()};
}

}  // namespace terrace
