// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/data/compressed/compress.h"
#include "tests/unit/worker/data/token_dataset_fixture.h"
#include "worker/data/text_source.h"
#include "worker/data/token_dataset.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CompressedTextTest : public TokenDatasetTest {
 protected:
  CompressedTextTest() { spec_.add_train(Put("train.txt", Letters(100))); }

  // All that is told of the file as data.validation.
  std::vector<int32_t> TokensOf(const std::string& path) {
    spec_.clear_validation();
    spec_.add_validation(path);
    const auto dataset = Open();
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? ValidationTokens(**dataset) : std::vector<int32_t>();
  }
  std::string ErrorOf(const std::string& name, const std::string& bytes) {
    spec_.clear_validation();
    spec_.add_validation(Put(name, bytes));
    return OpenError();
  }
};

// Longer than what is read at once, and than a piece of text.
std::string LongText() {
  std::string text;
  for (int i = 0; text.size() < (size_t{3} << 20); ++i)
    absl::StrAppend(&text, "line ", i * 7919 % 100'003, i % 5 == 0 ? "\n\n" : "\n");
  return text;
}

std::string LongLines() {
  std::string text;
  for (int i = 0; i < 2000; ++i)
    absl::StrAppend(&text, R"({"text": ")", std::string(i % 1000 + 1, 'a' + i % 26), "\"}\n",
                    i % 7 == 0 ? "\n" : "");
  return text + R"({"text": "the last line has no end"})";
}

TEST_F(CompressedTextTest, TheTokensAreThoseOfTheTextItself) {
  for (const auto& [name, text] :
       {std::pair<std::string, std::string>{"a.txt", LongText()}, {"a.jsonl", LongLines()}}) {
    SCOPED_TRACE(name);
    const std::vector<int32_t> plain = TokensOf(Put(name, text));
    EXPECT_GT(plain.size(), 900'000u);
    EXPECT_EQ(TokensOf(Put(name + ".gz", Gzip(text))), plain);
    EXPECT_EQ(TokensOf(Put(name + ".zst", Zstd(text))), plain);
  }
}

TEST_F(CompressedTextTest, DocumentsAreThoseOfTheTextItself) {
  spec_.set_samples("documents");
  train_.set_global_batch(1);
  const std::string lines = "{\"text\": \"abcd\"}\n{\"text\": \"efghij\"}\n";
  const auto rows = [this] {
    std::vector<int32_t> tokens(8), targets(8), all;
    const auto dataset = Open().value();
    for (int i = 0; i < 2; ++i) {
      dataset->ValidationRow(i, {.tokens = tokens, .targets = targets});
      all.insert(all.end(), targets.begin(), targets.end());
    }
    return all;
  };
  spec_.add_validation(Put("d.jsonl", lines));
  const std::vector<int32_t> plain = rows();
  EXPECT_EQ(plain, (std::vector<int32_t>{'b', 'c', 'd', -1, -1, -1, -1, -1,  //
                                         'f', 'g', 'h', 'i', 'j', -1, -1, -1}));
  spec_.set_validation(0, Put("d.jsonl.zst", Zstd(lines)));
  EXPECT_EQ(rows(), plain);
}

// As pigz, bgzip and cat make them; tapes end in zeros.
TEST_F(CompressedTextTest, MembersFollowEachOther) {
  const std::string text = Letters(40);
  const std::vector<int32_t> plain = TokensOf(Put("p.txt", text));
  const std::string a = text.substr(0, 13), b = text.substr(13);
  EXPECT_EQ(TokensOf(Put("m.txt.gz", Gzip(a) + Gzip("") + Gzip(b))), plain);
  EXPECT_EQ(TokensOf(Put("m.txt.zst", Zstd(a) + Zstd("") + Zstd(b))), plain);
  EXPECT_EQ(TokensOf(Put("z.txt.gz", Gzip(text) + std::string(512, '\0'))), plain);
  const std::string skipped("\x50\x2a\x4d\x18\x03\0\0\0abc", 11);
  EXPECT_EQ(TokensOf(Put("s.txt.zst", skipped + Zstd(text) + skipped)), plain);
}

TEST_F(CompressedTextTest, ATextThatChangedIsReadAgain) {
  const std::string path = Put("c.txt.gz", Gzip(Letters(40)));
  const std::vector<int32_t> before = TokensOf(path);
  EXPECT_EQ(TokensOf(path), before) << "from the cache";
  Put("c.txt.gz", Gzip("x" + Letters(39)));
  EXPECT_EQ(TokensOf(path)[0], 'x');
}

TEST_F(CompressedTextTest, WhatIsDamagedIsToldWithItsPlace) {
  const std::string text = LongText();
  for (const auto& [name, whole] :
       {std::pair<std::string, std::string>{"d.txt.gz", Gzip(text)}, {"d.txt.zst", Zstd(text)}}) {
    SCOPED_TRACE(name);
    const size_t half = whole.size() / 2;
    EXPECT_THAT(ErrorOf(name, whole.substr(0, half)),
                AllOf(HasSubstr("data.validation: "), HasSubstr(name),
                      HasSubstr(absl::StrCat("is cut off at byte ", half, " of ", half))));
    EXPECT_THAT(ErrorOf(name, whole.substr(0, whole.size() - 1)), HasSubstr("is cut off"));
    std::string bad = whole;
    for (size_t i = half; i < half + 64; ++i) bad[i] = static_cast<char>(~bad[i]);
    EXPECT_THAT(ErrorOf(name, bad), AllOf(HasSubstr("is damaged ("), HasSubstr(" at byte "),
                                          HasSubstr("get the file anew")));
    EXPECT_THAT(ErrorOf(name, whole + "garbage"),
                AllOf(HasSubstr("something else follows"),
                      HasSubstr(absl::StrCat("at byte ", whole.size()))));
    EXPECT_THAT(ErrorOf(name, ""), HasSubstr("it is empty"));
  }
  EXPECT_TRUE(std::filesystem::exists(spec_.cache()));
  for (const auto& entry : std::filesystem::directory_iterator(spec_.cache()))
    EXPECT_NE(entry.path().extension(), ".tmp") << "nothing stays behind";
}

TEST_F(CompressedTextTest, ANameThatSaysAnotherFormIsTold) {
  EXPECT_THAT(ErrorOf("a.txt.gz", Letters(40)),
              AllOf(HasSubstr("does not begin as gzip"), HasSubstr("without .gz")));
  EXPECT_THAT(ErrorOf("b.txt.gz", Zstd(Letters(40))),
              AllOf(HasSubstr("but as zstd"), HasSubstr("end in .zst")));
  EXPECT_THAT(ErrorOf("c.txt.zst", Gzip(Letters(40))), HasSubstr("but as gzip"));
  EXPECT_THAT(ErrorOf("d.bin.gz", Gzip(Letters(40))), HasSubstr("decompress it"));
  EXPECT_THAT(ErrorOf("e.csv.gz", Gzip(Letters(40))), HasSubstr("the extension \".gz\""));
}

TEST_F(CompressedTextTest, LinesAndBytesAreThoseOfTheText) {
  EXPECT_THAT(ErrorOf("a.jsonl.gz", Gzip("{\"text\": \"a\"}\n\n{\"text\": 3}\n")),
              HasSubstr("a.jsonl.gz:3: "));
  // A dataset of bytes takes any: the walk is asked itself.
  const std::string bad = Gzip("abc\xff");
  const absl::Status status =
      VisitText(std::as_bytes(std::span(bad)), TextFormat::kText, /*any_bytes=*/false, "b.txt.gz",
                nullptr, [](const TextPiece&) { return absl::OkStatus(); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("b.txt.gz is not UTF-8 at byte 3"));
}

TEST_F(CompressedTextTest, AFrameOfALargerWindowIsTold) {
  EXPECT_THAT(ErrorOf("w.txt.zst", Zstd(Letters(40), /*window_log=*/30)),
              AllOf(HasSubstr("a window of more than 2^27 bytes"), HasSubstr("--long=27")));
}

TEST_F(CompressedTextTest, AFrameThatNeedsADictionaryIsNotCalledDamaged) {
  // One stored byte in a frame that names dictionary 7 (RFC 8878).
  const std::string frame("\x28\xB5\x2F\xFD\x21\x07\x01\x09\0\0a", 11);
  EXPECT_THAT(
      ErrorOf("d.txt.zst", frame),
      AllOf(HasSubstr("compressed with a dictionary (zstd -D)"), Not(HasSubstr("damaged"))));
}

// What is made to fill memory or disks ends early, whatever it would have become.
TEST_F(CompressedTextTest, BombsAreRefused) {
  const auto walk = [](const std::string& file, TextFormat format, const char* name) {
    int64_t seen = 0;
    const absl::Status status =
        VisitText(std::as_bytes(std::span(file)), format, /*any_bytes=*/true, name, nullptr,
                  [&](const TextPiece& piece) {
                    seen += static_cast<int64_t>(piece.text.size());
                    return absl::OkStatus();
                  });
    EXPECT_LE(seen, kCompressedPieceMax + (64 << 20)) << name;
    return std::string(status.message());
  };
  const std::string zeros(size_t{64} << 20, '\0');
  std::string member = Zstd(zeros), file;
  for (int i = 0; i < 16; ++i) file += member;  // a GiB of one piece, and of one line
  EXPECT_LT(file.size(), 200'000u);
  EXPECT_THAT(walk(file, TextFormat::kText, "a.txt.zst"), HasSubstr("1000 times as much"));
  EXPECT_THAT(walk(file, TextFormat::kJsonLines, "a.jsonl.zst"), HasSubstr("1000 times as much"));
  std::string pieces;
  while (pieces.size() < (size_t{64} << 20)) pieces += std::string(1 << 16, 'a') + "\n";
  member = Zstd(pieces);
  file.clear();
  for (int i = 0; i < 16; ++i) file += member;
  EXPECT_THAT(walk(file, TextFormat::kText, "b.txt.zst"), HasSubstr("1000 times as much"));
}

}  // namespace
}  // namespace terrace
