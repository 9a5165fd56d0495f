// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tests/fuzz/judge.h"
#include "tests/fuzz/target.h"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/json_line.h"
#include "worker/data/text_source.h"

namespace terrace {
namespace {

// One process for all inputs, as a rank has it.
ChatRenderer& Chats() {
  static auto* const chats = new ChatRenderer(
      {.where = "fuzz.jinja",
       .texts = {{"default",
                  "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
                  "{% if add_generation_prompt %}<assistant>{% endif %}"}},
       .tokens = {}},
      {}, nullptr);
  return *chats;
}

void JudgeLine(const LineText& line) {
  size_t end = 0;
  for (const TextSpan& span : line.counted.value_or(std::vector<TextSpan>())) {
    FuzzRequire(span.begin >= end && span.begin <= span.end, "what counts ascends", line.text);
    end = span.end;
  }
  FuzzRequire(end <= line.text.size(), "what counts is of the text", line.text);
}

}  // namespace

void FuzzJsonLine(std::string_view input) {
  input = input.substr(0, input.find('\n'));
  absl::StatusOr<LineText> line = TextOfJsonLine(input);
  if (line.ok() && line->is_chat) line = Chats().Render(input);
  if (!line.ok()) return JudgeRefusal(line.status());
  JudgeLine(*line);
}

void FuzzCompressedText(std::string_view input) {
  const bool is_gzip = input.starts_with("\x1f\x8b");
  int64_t bytes = 0;
  const absl::Status status =
      VisitText(std::as_bytes(std::span(input)), TextFormat::kText, /*any_bytes=*/true,
                is_gzip ? "a.txt.gz" : "a.txt.zst", nullptr, [&](const TextPiece& piece) {
                  bytes += static_cast<int64_t>(piece.text.size());
                  FuzzRequire(piece.consumed_bytes <= static_cast<int64_t>(input.size()),
                              "a file ends where it ends", "");
                  return absl::OkStatus();
                });
  if (!status.ok()) return JudgeRefusal(status);
  const int64_t most = static_cast<int64_t>(input.size()) * (kExpansionMax + 1);
  FuzzRequire(bytes <= std::max(kCompressedPieceMax, most), "a bomb is refused", "");
}

}  // namespace terrace
