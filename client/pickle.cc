// SPDX-License-Identifier: Apache-2.0
#include "client/pickle.h"

#include <utility>

namespace terrace {
namespace {

// Python's pickletools names and explains them.
constexpr char kProtocol[] = {'\x80', 2};
constexpr char kEmptyDict = '}', kEmptyList = ']', kMark = '(', kSetItems = 'u', kAppends = 'e';
constexpr char kBinUnicode = 'X', kBinInt = 'J', kLong1 = '\x8a', kPair = '\x86';
constexpr char kTrue = '\x88', kFalse = '\x89', kStop = '.';

constexpr int kOfDict = -1;

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

Pickle::Pickle() : out_(kProtocol, sizeof kProtocol) {}

void Pickle::BeginDict() {
  out_ += {kEmptyDict, kMark};
  items_.push_back(kOfDict);
}

void Pickle::EndDict() {
  out_ += kSetItems;
  items_.pop_back();
  EndItem();
}

void Pickle::BeginList() {
  out_ += {kEmptyList, kMark};
  items_.push_back(0);
}

void Pickle::EndList() {
  out_ += kAppends;
  items_.pop_back();
  EndItem();
}

void Pickle::EndItem() {
  if (items_.empty() || items_.back() == kOfDict || ++items_.back() < kPickleBatch) return;
  out_ += {kAppends, kMark};
  items_.back() = 0;
}

void Pickle::Pair(int64_t first, int64_t second) {
  RawInt(first);
  RawInt(second);
  out_ += kPair;
  EndItem();
}

void Pickle::String(std::string_view text) {
  out_ += kBinUnicode;
  AppendLittleEndian(text.size(), 4, &out_);
  out_ += text;
  EndItem();
}

void Pickle::Int(int64_t value) {
  RawInt(value);
  EndItem();
}

void Pickle::RawInt(int64_t value) {
  if (value == static_cast<int32_t>(value)) {
    out_ += kBinInt;
    AppendLittleEndian(static_cast<uint64_t>(value), 4, &out_);
  } else {
    out_ += {kLong1, 8};
    AppendLittleEndian(static_cast<uint64_t>(value), 8, &out_);
  }
}

void Pickle::Bool(bool value) {
  out_ += value ? kTrue : kFalse;
  EndItem();
}

std::string Pickle::Finish() && {
  out_ += kStop;
  return std::move(out_);
}

}  // namespace terrace
