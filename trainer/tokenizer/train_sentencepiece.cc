#include "trainer/tokenizer/train_sentencepiece.h"

#include <fmt/core.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <optional>
#include <streambuf>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/base/atomic_file.h"
#include "common/base/quantity.h"
#include "trainer/storage/mapped_file.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

/// Feeds the lines of the files to the trainer, one mapped file at a time.
class LineIterator final : public sentencepiece::SentenceIterator {
 public:
  explicit LineIterator(const SentencepieceTraining& training) : training_(training) {
    for (const std::filesystem::path& file : training.files) {
      std::error_code error;  // is reported when the file is opened
      const std::uint64_t size = std::filesystem::file_size(file, error);
      if (!error) bytes_ += size;
    }
    advance();
  }
  bool done() const override { return done_; }
  void Next() override { advance(); }
  const std::string& value() const override { return line_; }
  // A file that can not be read ends the input. error() has the reason; a Status of the library
  // would lose a part of it.
  sentencepiece::util::Status status() const override { return {}; }
  const std::optional<Error>& error() const { return error_; }
  const LeftOutText& left_out() const { return left_out_; }
  bool has_text() const { return used_ > 0; }

 private:
  void advance() {
    while (rest_.empty()) {
      if (next_file_ == training_.files.size() || used_ >= training_.max_bytes) {
        done_ = true;
        if (training_.progress) training_.progress({"counting words"});
        return;
      }
      auto mapped = MappedFile::open(training_.files[next_file_++]);
      if (!mapped) {
        error_ = std::move(mapped).error();
        done_ = true;
        return;
      }
      file_ = std::move(*mapped);
      rest_ = {reinterpret_cast<const char*>(file_.data()), file_.size()};
      const std::uint64_t left = training_.max_bytes - used_;
      const std::uint64_t wanted = std::min<std::uint64_t>(rest_.size(), left);
      rest_ = utf8_prefix(rest_, left);
      used_ += wanted - rest_.size();  // of a character that was cut
      const TextKind kind = kind_of_text(rest_, training_.keep_non_text);
      left_out_.add(kind, rest_.size(), training_.files[next_file_ - 1].string());
      if (kind != TextKind::text) {
        bytes_ -= std::min<std::uint64_t>(bytes_, file_.size());
        rest_ = {};
      }
    }
    // Overlong lines are cut rather than dropped, so that files without newlines count too.
    constexpr std::size_t kMaxLine = 4096;
    std::size_t length = std::min(rest_.size(), kMaxLine);
    std::size_t skip = 0;
    if (const std::size_t newline = rest_.substr(0, length).find('\n');
        newline != std::string_view::npos) {
      length = newline;
      skip = 1;
    }
    line_.assign(rest_.substr(0, length));
    rest_.remove_prefix(length + skip);
    used_ += length + skip;
    if (constexpr std::uint64_t kStep = std::uint64_t{1} << 20;
        training_.progress && used_ / kStep != reported_ / kStep)
      training_.progress(
          {"reading text", reported_ = used_, std::min(bytes_, training_.max_bytes)});
  }

  const SentencepieceTraining& training_;
  std::size_t next_file_ = 0;
  std::uint64_t bytes_ = 0;  // of the files, less those that were left out
  std::uint64_t used_ = 0, reported_ = 0;
  LeftOutText left_out_;
  MappedFile file_;
  std::string_view rest_;
  std::string line_;
  bool done_ = false;
  std::optional<Error> error_;
};

/// Counts the pieces that the library has learned. It reports them nowhere but in its log of level
/// INFO, which it writes to std::cerr, a line for every 20 pieces:
///   trainer_interface.cc(541) LOG(INFO) Alphabet size=52
///   bpe_model_trainer.cc(258) LOG(INFO) Added: freq=30 size=20 all=400 active=41 piece=in
/// While this object exists, lines of the log below ERROR are not shown; all others are.
class PieceCounter final : public std::streambuf {
 public:
  PieceCounter(const SentencepieceTraining& training, std::int64_t meta_pieces)
      : progress_(training.progress),
        vocab_size_(training.vocab_size),
        meta_pieces_(meta_pieces),
        shown_(std::cerr.rdbuf(this)) {}
  ~PieceCounter() override { std::cerr.rdbuf(shown_); }
  PieceCounter(const PieceCounter&) = delete;
  PieceCounter& operator=(const PieceCounter&) = delete;

 protected:
  int_type overflow(int_type character) override {
    if (character == traits_type::eof()) return traits_type::not_eof(character);
    line_ += traits_type::to_char_type(character);
    if (line_.back() != '\n') return character;
    // A message may have several lines; only the first has a place in front.
    const bool info = line_.find("LOG(INFO) ") != line_.npos;
    if (info || line_.find("LOG(WARNING) ") != line_.npos)
      hidden_ = true;
    else if (line_.find(".cc(") != line_.npos || line_.find(".h(") != line_.npos)
      hidden_ = false;
    if (info) read_line();
    if (!hidden_) shown_->sputn(line_.data(), static_cast<std::streamsize>(line_.size()));
    line_.clear();
    return character;
  }

 private:
  /// Returns the number behind `name`; nullopt if the line has none.
  std::optional<std::int64_t> number_behind(std::string_view name) const {
    const std::size_t at = line_.find(name);
    std::int64_t number = 0;
    if (at == line_.npos) return std::nullopt;
    const char* const begin = line_.data() + at + name.size();
    const auto read = std::from_chars(begin, line_.data() + line_.size(), number);
    return read.ptr == begin || number < 0 ? std::nullopt : std::optional(number);
  }
  void read_line() {
    if (const auto size = number_behind(" Alphabet size=")) alphabet_ = *size;
    if (line_.find(" Added: freq=") == line_.npos) return;
    const auto learned = number_behind(" size=");
    // A total below the count: the library counts in another way.
    const std::int64_t total = vocab_size_ - meta_pieces_ - alphabet_;
    if (!learned || !progress_) return;
    progress_({"learning merges", static_cast<std::uint64_t>(*learned),
               static_cast<std::uint64_t>(total < *learned ? 0 : total), "pieces"});
  }

  const OnProgress& progress_;
  const std::int64_t vocab_size_, meta_pieces_;  // the latter: bytes and marks
  std::int64_t alphabet_ = 0;
  std::string line_;
  bool hidden_ = false;  // the message of the last line is not shown
  std::streambuf* const shown_;
};

/// Removes the library's place in front of a message: "(660) [(condition)] Vocabulary size ...".
std::string without_place(const std::string& message) {
  const std::size_t end = message.rfind("] ");
  return end == std::string::npos ? message : message.substr(end + 2);
}

/// The smallest vocabulary that the library accepts for the text, if its message names one:
/// "Vocabulary size is smaller than required_chars. 300 vs 345. Increase vocab_size or ..."
std::optional<std::int64_t> least_vocabulary(std::string_view message) {
  constexpr std::string_view kVersus = " vs ";
  const std::size_t reason = message.find("smaller than required_chars");
  const std::size_t versus = message.find(kVersus, reason);
  std::int64_t least = 0;
  if (reason == message.npos || versus == message.npos) return std::nullopt;
  const std::string_view number = message.substr(versus + kVersus.size());
  const auto read = std::from_chars(number.data(), number.data() + number.size(), least);
  return read.ec == std::errc() ? std::optional(least) : std::nullopt;
}

}  // namespace

Result<LeftOutText> train_sentencepiece(const SentencepieceTraining& training) {
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(training.vocab_size)},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"character_coverage", "0.9995"},
      {"max_sentence_length", "8192"},
      {"unk_id", "0"},
      {"eos_id", "1"},
      {"bos_id", "-1"},
      {"pad_id", "-1"},
      {"num_threads", "1"},  // the order of equal counts must not depend on threads
      {"minloglevel", "0"},  // for PieceCounter
  };
  constexpr std::int64_t kMetaPieces = 2 + 256;  // unk, eos and the bytes
  LineIterator lines(training);
  std::string model;
  const auto status = [&] {
    const PieceCounter counter(training, kMetaPieces);
    return sentencepiece::SentencePieceTrainer::Train(options, &lines, &model);
  }();
  if (lines.error()) return std::unexpected(*lines.error());
  if (!lines.has_text()) return std::unexpected(no_text(lines.left_out()));
  if (const auto least = status.ok() ? std::nullopt : least_vocabulary(status.ToString()))
    return fail(ErrorCode::usage,
                fmt::format("--vocab-size {}: too small: the characters of the text, the bytes and "
                            "the marks take {} ids; use {} or more",
                            training.vocab_size, *least, *least));
  if (!status.ok())
    return fail(ErrorCode::data,
                fmt::format("sentencepiece refused {} with a vocabulary of {}: {}; use more "
                            "text or another --vocab-size",
                            counted(training.files.size(), "file"), training.vocab_size,
                            without_place(status.ToString())));
  SORTIE_TRY(write_file_atomic(training.output, model));
  return lines.left_out();
}

}  // namespace sortie::trainer
