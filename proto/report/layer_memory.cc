// SPDX-License-Identifier: Apache-2.0
#include "proto/report/layer_memory.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/tensor_view.h"

namespace terrace {
namespace {

// Layers in model order; those that are no layer lie around them.
using Place = int32_t;
constexpr Place kEmbedding = -1;
constexpr Place kHead = std::numeric_limits<Place>::max() - 1;
constexpr Place kOther = std::numeric_limits<Place>::max();

std::string NameOf(Place place) {
  if (place == kEmbedding) return "embedding";
  if (place == kHead) return "head";
  return place == kOther ? "other" : absl::StrCat("layer ", place);
}

// kOther where the name tells nothing.
Place PlaceInName(const std::string& name) {
  for (const absl::string_view part : absl::StrSplit(name, '.')) {
    int32_t layer = 0;
    if (absl::StartsWith(part, "layer") && absl::SimpleAtoi(part.substr(5), &layer)) return layer;
    if (part == "embedding") return kEmbedding;
    if (part == "head") return kHead;
  }
  return kOther;
}

// By buffer of the list.
std::vector<Place> PlacesOf(const PlayedProgram& played, const v1::Sequence& sequence) {
  std::vector<Place> places;
  for (const v1::Buffer& buffer : played.program().buffers())
    places.push_back(PlaceInName(played.BufferOf(buffer.id()).name()));
  for (const v1::Instruction& instruction : sequence.instructions()) {
    if (instruction.layer() < 0) continue;
    for (const v1::Operand& operand : instruction.operands()) {
      const bool makes = operand.access() == v1::WRITE;
      if (!makes || operand.buffer() >= places.size()) continue;
      if (places[operand.buffer()] == kOther) places[operand.buffer()] = instruction.layer();
    }
  }
  return places;
}

// What a layer has of a buffer.
struct Share {
  Place place = kOther;
  int64_t bytes = 0;
};

int64_t EndOf(const v1::Operand& operand) {
  int64_t bytes = kernels::SizeOf(static_cast<kernels::DType>(operand.dtype()));
  for (const int64_t dimension : operand.shape()) bytes *= dimension;
  return operand.offset() + bytes;
}

// Whose gradients an instruction reads or makes: of the weights that it updates, else of its layer.
Place GradientPlace(const v1::Program& program, const v1::Instruction& instruction) {
  for (const v1::Operand& operand : instruction.operands()) {
    if (operand.access() != v1::UPDATE) continue;
    const v1::Buffer& buffer = program.buffers(static_cast<int>(operand.buffer()));
    if (buffer.class_() == v1::PARAMETER) return PlaceInName(buffer.name());
  }
  return instruction.layer() < 0 ? kOther : instruction.layer();
}

// Parts of one buffer of gradients by where they begin: its end, and whose it is.
using Parts = std::map<int64_t, std::pair<int64_t, Place>>;

// Of buffers of gradients whose names tell no layer, by id.
std::map<uint32_t, Parts> GradientParts(const v1::Program& program, const v1::Sequence& sequence) {
  std::map<uint32_t, Parts> parts;
  for (const v1::Instruction& instruction : sequence.instructions()) {
    for (const v1::Operand& operand : instruction.operands()) {
      if (operand.access() == v1::ACCESS_UNSPECIFIED) continue;
      const v1::Buffer& buffer = program.buffers(static_cast<int>(operand.buffer()));
      if (buffer.class_() != v1::GRADIENT || PlaceInName(buffer.name()) != kOther) continue;
      const Place place = GradientPlace(program, instruction);
      if (place != kOther) parts[buffer.id()][operand.offset()] = {EndOf(operand), place};
    }
  }
  return parts;
}

// By buffer. What nobody claims of a bucket is of no layer.
std::vector<std::vector<Share>> SharesOf(const PlayedProgram& played,
                                         const v1::Sequence& sequence) {
  const v1::Program& program = played.program();
  std::vector<std::vector<Share>> shares;
  const std::vector<Place> places = PlacesOf(played, sequence);
  for (const v1::Buffer& buffer : program.buffers()) {
    shares.push_back({{places[buffer.id()], buffer.bytes()}});
  }
  for (const auto& [id, parts] : GradientParts(program, sequence)) {
    std::map<Place, int64_t> bytes;
    int64_t unclaimed = program.buffers(static_cast<int>(id)).bytes(), from = 0;
    for (const auto& [begin, part] : parts) {
      const int64_t claimed = std::max<int64_t>(0, part.first - std::max(begin, from));
      bytes[part.second] += claimed;
      unclaimed -= claimed;
      from = std::max(from, part.first);
    }
    if (unclaimed > 0) bytes[kOther] += unclaimed;
    shares[id].clear();
    for (const auto& [place, held] : bytes) shares[id].push_back({place, held});
  }
  return shares;
}

class Layers {
 public:
  Layers(const LiveMemory& memory, int sequence)
      : memory_(memory),
        sequence_(sequence),
        program_(memory.played().program()),
        list_(program_.sequences(sequence)),
        shares_(SharesOf(memory.played(), list_)) {}

  // The place in the list at which the tier holds most: the first of them.
  uint32_t Peak(v1::Tier tier) const {
    const std::vector<int64_t> held = Course(tier, nullptr);
    return static_cast<uint32_t>(std::max_element(held.begin(), held.end()) - held.begin());
  }

  // `at`: a place in the list.
  LayerMemory At(v1::Tier tier, uint32_t at) const {
    const ExecutedInstruction here = memory_.Executed(sequence_, at);
    LayerMemory result{.stage = program_.stage(),
                       .tier = tier,
                       .instruction = here.instruction->id(),
                       .words = InstructionWords(here)};
    std::map<Place, LayerHeld> layers;
    for (const v1::Buffer& buffer : program_.buffers()) {
      if (!IsIn(buffer, tier)) continue;
      const auto [first, last] = LifeOf(buffer);
      const auto index = static_cast<int32_t>(at);
      for (const Share& share : shares_[buffer.id()]) {
        LayerHeld& layer = layers[share.place];
        if (first <= index && index <= last) layer.bytes[buffer.class_()] += share.bytes;
      }
    }
    for (auto& [place, layer] : layers) {
      layer.layer = NameOf(place);
      const std::vector<int64_t> held = Course(tier, &place);
      layer.most_bytes = *std::max_element(held.begin(), held.end());
      if (layer.most_bytes > 0) result.layers.push_back(layer);
    }
    return result;
  }

  std::vector<v1::Tier> Tiers() const {
    std::vector<v1::Tier> tiers;
    for (const v1::Arena& arena : program_.arenas()) {
      if (arena.bytes() > 0 && list_.instructions_size() > 0) tiers.push_back(arena.tier());
    }
    return tiers;
  }

 private:
  bool IsIn(const v1::Buffer& buffer, v1::Tier tier) const {
    return buffer.class_() != v1::EXTERNAL &&
           buffer.arena() < static_cast<uint32_t>(program_.arenas_size()) &&
           program_.arenas(static_cast<int>(buffer.arena())).tier() == tier;
  }
  // Instructions in list order; the first is behind the last of a buffer that the sequence does not
  // use.
  std::pair<int32_t, int32_t> LifeOf(const v1::Buffer& buffer) const {
    if (buffer.lifetime() == v1::PERSISTENT) return {0, list_.instructions_size() - 1};
    const auto life = memory_.Life(sequence_, buffer.id());
    return life.first < 0 ? std::pair<int32_t, int32_t>{1, 0} : life;
  }
  // Bytes by instruction: of all layers, or of the one at `place`.
  std::vector<int64_t> Course(v1::Tier tier, const Place* place) const {
    std::vector<int64_t> change(static_cast<size_t>(list_.instructions_size()) + 1);
    for (const v1::Buffer& buffer : program_.buffers()) {
      if (!IsIn(buffer, tier)) continue;
      const auto [first, last] = LifeOf(buffer);
      if (first > last) continue;
      for (const Share& share : shares_[buffer.id()]) {
        if (place != nullptr && share.place != *place) continue;
        change[static_cast<size_t>(first)] += share.bytes;
        change[static_cast<size_t>(last) + 1] -= share.bytes;
      }
    }
    change.pop_back();
    for (size_t i = 1; i < change.size(); ++i) change[i] += change[i - 1];
    return change;
  }

  const LiveMemory& memory_;
  const int sequence_;
  const v1::Program& program_;  // the list
  const v1::Sequence& list_;
  const std::vector<std::vector<Share>> shares_;  // by buffer
};

}  // namespace

std::vector<LayerMemory> LayersAtPeak(const LiveMemory& memory, int sequence) {
  const Layers layers(memory, sequence);
  std::vector<LayerMemory> tiers;
  for (const v1::Tier tier : layers.Tiers()) tiers.push_back(layers.At(tier, layers.Peak(tier)));
  return tiers;
}

std::vector<LayerMemory> LayersAt(const LiveMemory& memory, int sequence, uint32_t instruction) {
  const Layers layers(memory, sequence);
  std::vector<LayerMemory> tiers;
  for (const v1::Tier tier : layers.Tiers())
    tiers.push_back(layers.At(tier, memory.PlaceOf(sequence, instruction)));
  return tiers;
}

}  // namespace terrace
