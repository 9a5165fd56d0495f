// SPDX-License-Identifier: Apache-2.0
#include "tests/system/rank_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/check/value/announced.h"
#include "proto/program/allocation_events.h"
#include "proto/program/announced_weights.h"
#include "proto/program/state_layout.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/numbers/frozen_codes.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {
namespace {

// Optimizer ops that take one factor all stand behind the last gradient.
bool TakesOneFactor(const v1::Program& program) {
  const auto makes_factor = [](const v1::Instruction& instruction) {
    return instruction.compute().op() == "grad_scale";
  };
  return std::all_of(program.sequences().begin(), program.sequences().end(),
                     [&](const v1::Sequence& sequence) {
                       return std::count_if(sequence.instructions().begin(),
                                            sequence.instructions().end(), makes_factor) <= 1;
                     });
}

// Residuals are written while gradients are still made.
bool HasResiduals(const v1::Program& program) {
  return std::any_of(program.state().begin(), program.state().end(),
                     [](const v1::StateRange& range) { return range.kind() == v1::RESIDUAL; });
}

bool KeepsGradients(const v1::Program& program) {
  return program.arenas_size() == 1 && !UsesCaching(program) && TakesOneFactor(program) &&
         !HasResiduals(program);
}

kernels::DType TypeOf(const v1::Program& program, uint32_t buffer) {
  return static_cast<kernels::DType>(program.buffers(static_cast<int>(buffer)).dtype());
}
int64_t SizeOf(const v1::Program& program, uint32_t buffer) {
  return kernels::SizeOf(TypeOf(program, buffer));
}

Piece PieceOf(const Rank& rank, const v1::StateRange& range, const StateRun& run,
              std::vector<float> values) {
  return {.tensor = range.tensor(),
          .begin = run.begin,
          .values = std::move(values),
          .owned = OwnsState(range, rank.program.grid(), rank.coordinates)};
}

std::vector<Piece> StateOf(const Rank& rank, v1::StateKind kind) {
  std::vector<Piece> pieces;
  for (const v1::StateRange& range : rank.program.state()) {
    if (range.kind() != kind) continue;
    for (const StateRun& run : RunsOf(range, rank.program.grid(), rank.coordinates)) {
      pieces.push_back(
          PieceOf(rank, range, run, rank.Read(range.buffer(), run.offset, run.elements)));
    }
  }
  return pieces;
}

// The gradients that the optimizer ops read, by what they update.
std::vector<Piece> Gradients(const Rank& rank) {
  std::vector<Piece> pieces;
  for (const v1::Sequence& sequence : rank.program.sequences()) {
    for (const v1::Instruction& instruction : sequence.instructions()) {
      if (!instruction.compute().op().starts_with("update")) continue;
      const v1::Operand& gradient = instruction.operands(0);
      const v1::Operand& weight = instruction.operands(1);
      const int64_t element_bytes = SizeOf(rank.program, weight.buffer());
      const int64_t gradient_bytes = SizeOf(rank.program, gradient.buffer());
      const int64_t bytes = weight.shape(0) * element_bytes;
      for (const v1::StateRange& range : rank.program.state()) {
        if (range.kind() != v1::WEIGHT || range.buffer() != weight.buffer()) continue;
        for (const StateRun& run : RunsOf(range, rank.program.grid(), rank.coordinates)) {
          const int64_t within = run.offset - weight.offset();
          if (within < 0 || within >= bytes) continue;
          pieces.push_back(
              PieceOf(rank, range, run,
                      rank.Read(gradient.buffer(),
                                gradient.offset() + within / element_bytes * gradient_bytes,
                                run.elements)));
        }
      }
    }
  }
  return pieces;
}

// Of the state's weights, by name: codes are bytes.
std::map<std::string, int64_t> WeightElements(const v1::Program& program) {
  std::map<std::string, int64_t> elements;
  for (const AnnouncedWeight& weight : AnnouncedWeights(program)) {
    int64_t& count = elements[weight.name] = 1;
    for (const int64_t size : weight.shape) count *= size;
  }
  return elements;
}

// Of its tensors, by name.
std::map<std::string, int64_t> TensorElements(const Model& model) {
  std::map<std::string, int64_t> elements;
  for (const Tensor& tensor : model.tensors) elements[tensor.name] = tensor.elements();
  return elements;
}

// Whole tensors from what the owners hold; everybody else must hold the same. Nobody has any of
// `absent`.
absl::Status Assemble(const std::map<std::string, int64_t>& elements,
                      const std::set<std::string>& absent,
                      const std::vector<const std::vector<Piece>*>& ranks, const char* what,
                      Tensors* tensors) {
  std::map<std::string, std::vector<bool>> known;
  for (const auto& [name, count] : elements) {
    if (absent.contains(name)) continue;
    (*tensors)[name].resize(count);
    known[name].resize(count);
  }
  for (const std::vector<Piece>* pieces : ranks) {
    for (const Piece& piece : *pieces) {
      if (absent.contains(piece.tensor))
        return absl::InternalError(absl::StrCat(what, " of ", piece.tensor, ", which is frozen"));
      if (!piece.owned) continue;
      std::copy(piece.values.begin(), piece.values.end(),
                tensors->at(piece.tensor).begin() + piece.begin);
      std::fill_n(known.at(piece.tensor).begin() + piece.begin, piece.values.size(), true);
    }
  }
  for (const auto& [name, held] : known) {
    if (std::find(held.begin(), held.end(), false) != held.end()) {
      return absl::InternalError(absl::StrCat(what, " of ", name, ": not all has an owner"));
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Piece& piece : *ranks[rank]) {
      if (std::memcmp(piece.values.data(), tensors->at(piece.tensor).data() + piece.begin,
                      piece.values.size() * sizeof(float)) != 0) {
        return absl::InternalError(
            absl::StrCat(what, " of ", piece.tensor, ": rank ", rank, " differs from the owner"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

void FixedDataset::TrainRow(int64_t, int64_t row, int64_t, const SampleRow& to) const {
  const int64_t begin = row % data_.rows * data_.length;
  std::copy_n(data_.tokens.begin() + begin, data_.length, to.tokens.begin());
  std::copy_n(data_.targets.begin() + begin, data_.length, to.targets.begin());
  if (!to.starts.empty())
    std::copy_n(data_.starts.begin() + begin, data_.length, to.starts.begin());
}

void FixedDataset::ValidationRow(int64_t index, const SampleRow& to) const {
  TrainRow(0, index, data_.rows, to);
}

std::vector<float> Rank::Read(uint32_t buffer, int64_t offset, int64_t elements) const {
  const v1::Buffer& b = program.buffers(static_cast<int>(buffer));
  std::vector<float> values(elements);
  std::vector<std::byte> bytes(elements * SizeOf(program, buffer));
  const absl::Status read = regions[b.arena()]->Read(b.offset() + offset, bytes);
  if (!read.ok()) values.assign(elements, std::nanf(""));  // equal to nothing
  if (!read.ok()) return values;
  if (TypeOf(program, buffer) == kernels::DType::kU8) {
    for (int64_t i = 0; i < elements; ++i) values[i] = static_cast<float>(bytes[i]);
    return values;
  }
  ConvertElements(TypeOf(program, buffer), bytes.data(), kernels::DType::kF32,
                  reinterpret_cast<std::byte*>(values.data()), elements);
  return values;
}

TrainIo TrainIoOf(const Rank& rank, const TokenDataset& dataset) {
  const v1::Grid& grid = rank.program.grid();
  return TrainIo(rank.program.rules(), dataset, DataIndex(grid, rank.coordinates),
                 {.ranks = AxisSize(grid, v1::CONTEXT),
                  .index = rank.coordinates.context,
                  .zigzag = rank.program.rules().context_zigzag()});
}

int64_t CountedTargets(const JobData& data, const v1::StepRules& rules) {
  int64_t counted = 0;
  for (int64_t row = 0; row < GlobalBatch(rules); ++row) {
    const auto first = data.targets.begin() + row % data.rows * data.length;
    counted += std::count_if(first, first + data.length, [](int32_t id) { return id >= 0; });
  }
  return counted;
}

// The codes or the scales of a frozen tensor in blocks, from `begin` on.
static absl::Status Encode(const AnnouncedWeight& weight, const std::vector<float>& tensor,
                           int64_t begin, std::span<std::byte> to) {
  const CodeFormat format = CodesOf(*weight.initializer);
  const auto source = [&tensor](int64_t first, std::span<float> numbers) {
    std::copy_n(tensor.begin() + first, numbers.size(), numbers.begin());
    return absl::OkStatus();
  };
  return weight.part == AnnouncedWeight::Part::kCodes ? EncodeCodes(format, source, begin, to)
                                                      : EncodeScales(format, source, begin, to);
}

absl::Status LoadWeights(const Rank& rank, const Tensors& weights) {
  const std::map<std::string, AnnouncedWeight> announced = AnnouncedByName(rank.program);
  for (const v1::StateRange& range : rank.program.state()) {
    if (range.kind() != v1::WEIGHT) continue;
    const AnnouncedWeight& weight = announced.at(range.tensor());
    const std::vector<float>& tensor = weights.at(weight.initializer->tensor());
    for (const StateRun& run : RunsOf(range, rank.program.grid(), rank.coordinates)) {
      const v1::Buffer& buffer = rank.program.buffers(static_cast<int>(range.buffer()));
      std::vector<std::byte> bytes(run.elements * SizeOf(rank.program, range.buffer()));
      if (weight.part == AnnouncedWeight::Part::kNumbers) {
        const auto values = std::span(tensor).subspan(run.begin, run.elements);
        ConvertElements(kernels::DType::kF32, reinterpret_cast<const std::byte*>(values.data()),
                        TypeOf(rank.program, range.buffer()), bytes.data(), run.elements);
      } else {
        RETURN_IF_ERROR(Encode(weight, tensor, run.begin, bytes));
      }
      RETURN_IF_ERROR(rank.regions[buffer.arena()]->Write(buffer.offset() + run.offset, bytes));
    }
  }
  return absl::OkStatus();
}

GradientKeeper::GradientKeeper(const Rank& rank)
    : rank_(rank), kept_(!KeepsGradients(rank.program)) {}

void GradientKeeper::WaitUntilUnread() {
  if (std::exchange(kept_, true)) return;
  pieces = Gradients(rank_);
}

void AddStats(const StepStats& stats, RankResult* result) {
  result->losses.push_back(stats.loss);
  result->grad_norms.push_back(stats.grad_norm);
  if (!stats.pairs.has_value()) return;
  result->margins.push_back(stats.pairs->margin);
  result->accuracies.push_back(stats.pairs->accuracy);
}

void AddStates(const Rank& rank, GradientKeeper* keeper, RankResult* result) {
  result->gradients = std::move(keeper->pieces);
  result->weights = StateOf(rank, v1::WEIGHT);
  result->first_moment = StateOf(rank, v1::FIRST_MOMENT);
  result->second_moment = StateOf(rank, v1::SECOND_MOMENT);
}

// Tensors of which their rules keep no such state, frozen ones among them.
static std::set<std::string> WithoutMoment(const v1::Program& program, v1::StateKind kind) {
  std::set<std::string> without = check::FrozenTensors(program);
  const TensorRules rules(program);
  for (const v1::Initializer& init : program.initializers()) {
    const std::vector<v1::StateKind> kinds = rules.Moments(init.tensor(), init.shape_size() >= 2);
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) without.insert(init.tensor());
  }
  return without;
}

// A skipped step's norm may be no number.
bool AreSame(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

absl::StatusOr<JobResult> Merge(const JobData& data, std::vector<v1::Program> programs,
                                const std::vector<RankResult>& ranks) {
  JobResult result = {.losses = ranks[0].losses,
                      .grad_norms = ranks[0].grad_norms,
                      .margins = ranks[0].margins,
                      .accuracies = ranks[0].accuracies,
                      .programs = std::move(programs)};
  std::vector<const std::vector<Piece>*> gradients, weights, first_moment, second_moment;
  for (const RankResult& rank : ranks) {
    if (!AreSame(rank.losses, result.losses) || !AreSame(rank.grad_norms, result.grad_norms) ||
        rank.margins != result.margins || rank.accuracies != result.accuracies) {
      return absl::InternalError("ranks report different losses, norms or margins");
    }
    gradients.push_back(&rank.gradients);
    weights.push_back(&rank.weights);
    first_moment.push_back(&rank.first_moment);
    second_moment.push_back(&rank.second_moment);
    result.sent_per_step.push_back(rank.sent_per_step);
    result.times.push_back(rank.times);
    result.allocator.push_back(rank.allocator);
    result.mapped_bytes.push_back(rank.mapped_bytes);
  }
  const std::set<std::string> frozen = check::FrozenTensors(result.programs[0]);
  const std::map<std::string, int64_t> elements = TensorElements(data.model);
  if (KeepsGradients(result.programs[0])) {
    RETURN_IF_ERROR(Assemble(elements, frozen, gradients, "gradient", &result.gradients));
  }
  RETURN_IF_ERROR(
      Assemble(WeightElements(result.programs[0]), {}, weights, "weight", &result.weights));
  RETURN_IF_ERROR(Assemble(elements, WithoutMoment(result.programs[0], v1::FIRST_MOMENT),
                           first_moment, "first moment", &result.first_moment));
  RETURN_IF_ERROR(Assemble(elements, WithoutMoment(result.programs[0], v1::SECOND_MOMENT),
                           second_moment, "second moment", &result.second_moment));
  // What programs sum is the gradient of the loss of all tokens that count.
  const v1::StepRules& rules = result.programs[0].rules();
  const auto tokens =
      static_cast<float>(rules.pairs() ? GlobalBatch(rules) / 2 : CountedTargets(data, rules));
  for (auto& [name, values] : result.gradients) {
    for (float& value : values) value /= tokens;
  }
  return result;
}

}  // namespace terrace
