// SPDX-License-Identifier: Apache-2.0
#include "proto/program/program_hash.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(ProgramHashTest, Sha256IsThatOfTheStandard) {
  // FIPS 180-2, appendix B.1.
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(ProgramHashTest, MapEntriesAreWrittenInKeyOrder) {
  v1::Program forward, backward;
  for (int i = 0; i < 50; ++i) (*forward.mutable_tied())["tensor" + std::to_string(i)] = "x";
  for (int i = 49; i >= 0; --i) (*backward.mutable_tied())["tensor" + std::to_string(i)] = "x";
  EXPECT_EQ(SerializeProgram(forward), SerializeProgram(backward));
}

TEST(ProgramHashTest, TheBytesAreTheProgram) {
  v1::Program program;
  program.set_job("j");
  program.add_buffers()->set_name("b");
  v1::Program parsed;
  ASSERT_TRUE(parsed.ParseFromString(SerializeProgram(program)));
  EXPECT_EQ(parsed.buffers(0).name(), "b");
}

}  // namespace
}  // namespace terrace
