// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/data.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/exit_code.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "base/text/text_table.h"
#include "base/utf8.h"
#include "proto/v1/tools.pb.h"
#include "worker/data/token_dataset.h"
#include "worker/data/tokenizer.h"

namespace terrace {
namespace {

constexpr size_t kTextBytesMax = 4096;  // of a span

struct Row {
  std::vector<int32_t> tokens, targets, starts;
};

// The last token with a target behind it, plus one: what follows is padding.
int64_t TokensOf(const Row& row) {
  for (size_t i = row.targets.size(); i-- > 0;) {
    if (row.targets[i] >= 0) return static_cast<int64_t>(i) + 1;
  }
  return 0;
}

class DataLook {
 public:
  DataLook(const v1::DataRequest& request, const TokenDataset& dataset, const Tokenizer& tokenizer)
      : dataset_(dataset),
        tokenizer_(tokenizer),
        batch_(request.spec().train().global_batch()),
        steps_(request.spec().train().steps()) {}

  v1::DataResult Run(const DataArgs& args, int64_t steps) {
    result_.set_train_tokens(dataset_.tokens(Split::kTrain));
    result_.set_validation_tokens(dataset_.tokens(Split::kValidation));
    result_.set_steps(steps);
    result_.set_tokens(dataset_.TrainTokens(0, steps, batch_));
    AddSources();
    std::map<int64_t, int64_t> lengths;
    for (int64_t step = 0; step < steps; ++step) {
      ++lengths[dataset_.TrainLength(step, batch_)];
      for (int64_t row = 0; row < batch_; ++row) {
        const bool shown = step * batch_ + row < args.rows;
        Add(step, row, shown ? result_.add_rows() : nullptr);
      }
    }
    for (const auto& [length, count] : lengths) {
      v1::DataLength* line = result_.add_lengths();
      line->set_length(length);
      line->set_steps(count);
    }
    return std::move(result_);
  }

 private:
  void AddSources() {
    result_.set_planned_steps(steps_);
    for (const SourceView& view : dataset_.Sources(steps_, batch_)) {
      v1::DataSource* source = result_.add_sources();
      source->set_name(view.name);
      source->set_weight(view.weight);
      source->set_tokens(view.tokens);
      source->set_samples(view.samples);
      source->set_drawn(view.drawn);
      source->set_epochs(view.epochs());
    }
  }

  void Add(int64_t step, int64_t row, v1::DataRow* shown) {
    const int64_t length = dataset_.TrainLength(step, batch_);
    row_.tokens.resize(length);
    row_.targets.resize(length);
    row_.starts.resize(length);
    dataset_.TrainRow(step, row, batch_,
                      {.tokens = row_.tokens, .targets = row_.targets, .starts = row_.starts});
    const int64_t counted = std::count_if(row_.targets.begin(), row_.targets.end(),
                                          [](int32_t target) { return target >= 0; });
    result_.set_rows_seen(result_.rows_seen() + 1);
    result_.set_positions(result_.positions() + length);
    result_.set_counted(result_.counted() + counted);
    if (counted == 0) result_.set_rows_without(result_.rows_without() + 1);
    if (shown == nullptr) return;
    shown->set_step(step);
    shown->set_row(row);
    shown->set_length(length);
    AddSpans(shown);
  }

  // The documents of a row; padding is none.
  void AddSpans(v1::DataRow* shown) const {
    const int64_t tokens = TokensOf(row_);
    for (int64_t begin = 0, end = 0; begin < tokens; begin = end) {
      while (end < tokens && row_.starts[end] == begin) ++end;
      AddDocument(begin, std::max(end, begin + 1), shown);
      end = std::max(end, begin + 1);
    }
  }

  // Tokens [begin, end) of a row and what follows the last one. The first is never predicted, each
  // other one is the target of the one before.
  void AddDocument(int64_t begin, int64_t end, v1::DataRow* shown) const {
    std::vector<int32_t> ids;
    bool counted = false;
    const auto flush = [&] {
      if (ids.empty()) return;
      v1::DataSpan* span = shown->add_spans();
      span->set_text(TextOf(ids));
      span->set_tokens(static_cast<int64_t>(ids.size()));
      span->set_counted(counted);
      ids.clear();
    };
    for (int64_t i = begin; i <= end; ++i) {
      const bool counts = i > begin && row_.targets[i - 1] >= 0;
      if (i == end && !counts) break;  // a prompt that is cut off
      if (counts != counted) flush();
      counted = counts;
      ids.push_back(i < end ? row_.tokens[i] : row_.targets[end - 1]);
    }
    flush();
  }

  std::string TextOf(const std::vector<int32_t>& ids) const {
    const bool known = std::all_of(ids.begin(), ids.end(),
                                   [&](int32_t id) { return id < tokenizer_.vocabulary(); });
    return CleanText(known ? tokenizer_.Decode(ids) : absl::StrJoin(ids, " "), kTextBytesMax);
  }

  const TokenDataset& dataset_;
  const Tokenizer& tokenizer_;
  const int64_t batch_, steps_;
  v1::DataResult result_;
  Row row_;
};

// `pairs` says whether rows are the answers of pairs (train.preference).
absl::StatusOr<v1::DataResult> Look(const DataArgs& args, ProgressBar* bar, bool* pairs,
                                    std::vector<std::string>* remarks) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(args.request));
  v1::DataRequest request;
  if (!request.ParseFromArray(file.bytes().data(), static_cast<int>(file.bytes().size())))
    return absl::InvalidArgumentError(absl::StrCat(args.request, " is no request"));
  const v1::JobSpec& spec = request.spec();
  *pairs = spec.train().has_preference();
  ASSIGN_OR_RETURN(const auto dataset,
                   TokenDataset::Open(
                       spec.data(), spec.train(), request.vocabulary(),
                       [&](std::string_view text, double fraction) { bar->Draw(text, fraction); },
                       spec.model().config_json()));
  *remarks = TellNotHeldOut(dataset->Sources(spec.train().steps(), spec.train().global_batch()),
                            spec.data().validation_fraction());
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Load(spec.data().tokenizer(), spec.model().config_json()));
  return DataLook(request, *dataset, *tokenizer)
      .Run(args, std::min(args.steps, spec.train().steps()));
}

std::string Share(int64_t part, int64_t whole) {
  return absl::StrFormat("%.1f %%", whole == 0 ? 0.0 : 100.0 * part / whole);
}

void PrintRow(const v1::DataRow& row, bool pairs, std::ostream& out) {
  out << "\nrow " << row.row() << " of step " << row.step() << ", " << Grouped(row.length())
      << " positions";
  if (pairs) out << ", the " << (row.row() % 2 == 0 ? "chosen" : "rejected") << " answer of a pair";
  out << "\n";
  for (const v1::DataSpan& span : row.spans()) {
    for (const absl::string_view line : absl::StrSplit(span.text(), '\n'))
      out << (span.counted() ? "  counted  | " : "           | ") << line << "\n";
  }
}

// How often train.steps see what there is.
void PrintSources(const v1::DataResult& result, std::ostream& out) {
  using enum TextTable::Align;
  TextTable table({{kLeft, 60}, {kRight}, {kRight}, {kRight}, {kRight}, {kRight}}, /*indent=*/2);
  table.Add({"source", "weight", "tokens", "samples", "drawn", "epochs"});
  for (const v1::DataSource& source : result.sources()) {
    table.Add({CleanLine(source.name(), kTextBytesMax), PercentText(source.weight()),
               Grouped(source.tokens()), Grouped(source.samples()), Grouped(source.drawn()),
               absl::StrFormat("%.2f", source.epochs())});
  }
  std::string text;
  table.AppendTo(&text);
  out << "\nall " << Grouped(result.planned_steps()) << " steps\n" << text;
}

void Print(const v1::DataResult& result, bool pairs, std::ostream& out) {
  out << "training tokens    " << Grouped(result.train_tokens()) << "\nvalidation tokens  "
      << Grouped(result.validation_tokens()) << "\n";
  PrintSources(result, out);
  out << "\nthe first " << Grouped(result.steps()) << " steps, " << Grouped(result.rows_seen())
      << " rows\n";
  for (const v1::DataLength& line : result.lengths())
    out << "  " << Grouped(line.steps()) << " steps of rows of " << Grouped(line.length()) << "\n";
  out << "  positions  " << Grouped(result.positions()) << "\n  tokens     "
      << Grouped(result.tokens()) << ", " << Share(result.tokens(), result.positions())
      << " of the positions; the rest is padding\n  counted    " << Grouped(result.counted())
      << ", " << Share(result.counted(), result.tokens())
      << (pairs ? " of the tokens: the answers, which the loss compares two and two\n"
                : " of the tokens: what the loss is the mean of\n");
  if (result.rows_without() > 0)
    out << "  " << Grouped(result.rows_without()) << " rows have nothing that the loss counts\n";
  for (const v1::DataRow& row : result.rows()) PrintRow(row, pairs, out);
}

}  // namespace

int RunDataTool(const DataArgs& args, const ToolOutput& output) {
  std::vector<std::string> remarks;
  bool pairs = false;
  const absl::StatusOr<v1::DataResult> result = [&] {
    ProgressBar bar(output);
    return Look(args, &bar, &pairs, &remarks);
  }();
  if (!result.ok()) return FailTool(output, result.status());
  for (const std::string& remark : remarks) output.err << "warning: " << remark << "\n";
  if (output.format == ToolFormat::kJson) {
    PrintJson(*result, output.out);
  } else {
    Print(*result, pairs, output.out);
  }
  return ToInt(ExitCode::kOk);
}

}  // namespace terrace
