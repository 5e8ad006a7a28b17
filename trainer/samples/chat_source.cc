#include "trainer/samples/chat_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <numeric>
#include <optional>

#include "common/base/atomic_file.h"
#include "trainer/data/ordered_pool.h"
#include "trainer/random/random.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

/// Lines of a file that a thread parses at a time.
struct Lines {
  std::int64_t first = 1;  // number of the first line in the file
  std::string_view text{};
};

/// Removes the lines in the first `bytes` bytes or a little more from `text`, and returns them.
Lines take_lines(std::string_view& text, std::size_t bytes, std::int64_t& number) {
  const std::size_t end = std::min(text.find('\n', std::min(bytes, text.size())), text.size() - 1);
  Lines lines{number, text.substr(0, end + 1)};
  text.remove_prefix(end + 1);
  number += std::ranges::count(lines.text, '\n');
  return lines;
}

}  // namespace

Result<std::unique_ptr<ChatSource>> ChatSource::open(const config::JobConfig& job,
                                                     const std::vector<std::string>& files,
                                                     const Tokenizer& tokenizer, bool shuffle,
                                                     int threads, const OnProgress& progress) {
  constexpr std::size_t kMaxFileBytes = std::size_t{4} << 30;
  std::unique_ptr<ChatSource> source(new ChatSource);
  source->sequence_length_ = job.model.sequence_length;
  source->vocab_size_ = job.model.vocab_size;
  source->seed_ = static_cast<std::uint64_t>(job.trainer.seed);
  source->shuffle_ = shuffle;
  source->packed_ = job.data.pack_conversations;
  WorkProgress work{.stage = "reading conversations"};
  for (const std::string& file : files) {
    std::error_code ignored;  // reading it says what is wrong
    if (const auto bytes = std::filesystem::file_size(file, ignored); !ignored) work.total += bytes;
  }
  const auto done = [&](std::size_t bytes) {
    work.done += bytes;
    if (progress) progress(work);
  };
  Sha256 hash;
  if (source->packed_) hash.update("packed\n");
  // The path of the tokenizer's file is not part of it: hosts may have the file at different
  // places.
  const std::string name = tokenizer.name();
  hash.update(fmt::format("{} {}\n", name.substr(0, name.find(':')), tokenizer.model_hash()));
  for (const std::string& file : files) {
    SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxFileBytes));
    hash.update(text);
    const std::int64_t before = source->count_.conversations;
    SORTIE_TRY(source->add_file(file, text, tokenizer, threads, done));
    if (source->count_.conversations == before)
      return fail(
          ErrorCode::data,
          fmt::format("{}: no conversation in it; write one a line, or take the file out of "
                      "the list",
                      file));
  }
  source->fingerprint_ = hash.finish_hex();
  const std::string first = files.empty() ? "data.chat_files" : files.front();
  if (source->conversations_.empty() && source->count_.answer_tokens == 0)
    return fail(ErrorCode::data,
                fmt::format("{}: no conversation has a message of the assistant, and only these "
                            "are learned",
                            first));
  if (source->conversations_.empty())
    return fail(ErrorCode::data,
                fmt::format("{}: no conversation has an answer in its first {} tokens; use a "
                            "longer model.sequence_length",
                            first, source->sequence_length_));
  source->make_rows();
  return source;
}

Result<> ChatSource::add_file(const std::string& file, std::string_view text,
                              const Tokenizer& tokenizer, int threads,
                              const std::function<void(std::size_t)>& done) {
  constexpr std::size_t kPiece = 64 << 10;
  std::int64_t number = 1;
  OrderedPool<Lines, std::vector<Conversation>> pool(
      [&]() -> Result<std::optional<Lines>> {
        if (text.empty()) return std::optional<Lines>();
        return std::optional(take_lines(text, kPiece, number));
      },
      [&](const Lines& lines) { return read_lines(file, lines.first, lines.text, tokenizer); },
      threads);
  using State = decltype(pool)::State;
  for (State state = State::pending; state != State::ended;
       state = pool.wait(std::chrono::seconds(1))) {
    if (state == State::pending) continue;
    SORTIE_ASSIGN_OR_RETURN(auto read, pool.next());
    for (Conversation& conversation : read.output) add(std::move(conversation));
    done(read.item.text.size());
  }
  return {};
}

Result<std::vector<Conversation>> ChatSource::read_lines(const std::string& file,
                                                         std::int64_t number,
                                                         std::string_view lines,
                                                         const Tokenizer& tokenizer) const {
  std::vector<Conversation> conversations;
  for (; !lines.empty(); ++number) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto conversation = read_conversation(line, tokenizer, vocab_size_);
    if (!conversation)
      return std::unexpected(
          with_context(std::move(conversation).error(), fmt::format("{}:{}", file, number)));
    conversations.push_back(std::move(*conversation));
  }
  return conversations;
}

void ChatSource::add(Conversation conversation) {
  chatml_ = chatml_ || conversation.chatml;
  // The first token is never a target.
  const auto targets_before = [&](std::size_t end) {
    const auto begin = conversation.counts.begin();
    return end > 1 ? std::count(begin + 1, begin + static_cast<std::ptrdiff_t>(end), true) : 0;
  };
  const std::size_t size = conversation.ids.size(),
                    kept = std::min(size, static_cast<std::size_t>(sequence_length_) + 1);
  const std::int64_t targets = targets_before(kept), all_targets = targets_before(size);
  ++count_.conversations;
  count_.without_end += conversation.without_end;
  count_.answer_tokens += all_targets;
  count_.lost_tokens += all_targets - targets;
  if (targets == 0) {
    ++count_.left_out;
    return;
  }
  count_.cut += kept < size;
  conversation.ids.resize(kept);
  conversation.counts.resize(kept);
  if (packed_) {  // what follows the last answer would be processed without effect
    while (!conversation.counts.back()) conversation.counts.pop_back();
    conversation.ids.resize(conversation.counts.size());
  }
  conversation.ids.shrink_to_fit();
  conversations_.push_back(std::move(conversation));
}

/// Adjacent conversations of a file are often alike, so those of equal length are taken in an order
/// given by the seed. Validation may read the first samples only, so it keeps the order of the
/// files: the first samples then hold the first conversations, not the longest.
void ChatSource::make_rows() {
  const std::size_t count = conversations_.size();
  std::vector<std::int64_t> lengths(count, sequence_length_);
  if (packed_)
    std::ranges::transform(conversations_, lengths.begin(),
                           [this](const Conversation& each) { return length_of(each); });
  if (!packed_ || !shuffle_) {
    rows_ = pack_in_order(lengths, sequence_length_);
    return;
  }
  const Permutation mixed(random_bits(seed_), count);
  std::vector<std::uint32_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = static_cast<std::uint32_t>(mixed(i));
  rows_ = pack_tightly(lengths, order, sequence_length_);
}

std::string ChatSource::missing_ends(const Tokenizer& tokenizer) const {
  if (count_.without_end == 0) return {};
  const auto eod = tokenizer.eod_id();
  return fmt::format(
      "{} of {} conversations are a prompt and a completion, and these get no end, so that the "
      "model does not learn to stop: {}",
      count_.without_end, count_.conversations,
      eod ? fmt::format("the end of a completion is token {}, and model.vocab_size is {}; train "
                        "with {} or more",
                        *eod, vocab_size_, *eod + 1)
          : fmt::format("tokenizer {} has no end of a document; write the end into the completions",
                        tokenizer.name()));
}

double ChatSource::padding() const {
  const std::int64_t used = std::transform_reduce(
      conversations_.begin(), conversations_.end(), std::int64_t{0}, std::plus(),
      [this](const Conversation& conversation) { return length_of(conversation); });
  return 1.0 -
         static_cast<double>(used) / static_cast<double>(samples_per_epoch() * sequence_length_);
}

Result<> ChatSource::sample(std::int64_t index, std::span<std::int32_t> tokens,
                            std::span<std::int32_t> targets) {
  const std::int64_t count = samples_per_epoch();
  std::int64_t at = index % count;
  if (shuffle_) {
    if (const std::int64_t epoch = index / count; epoch != epoch_) {
      epoch_ = epoch;
      order_ = Permutation(random_bits(seed_ + random_bits(static_cast<std::uint64_t>(epoch))),
                           static_cast<std::uint64_t>(count));
    }
    at = static_cast<std::int64_t>(order_(static_cast<std::uint64_t>(at)));
  }
  std::size_t place = 0;
  for (const std::uint32_t number : rows_[static_cast<std::size_t>(at)]) {
    const Conversation& conversation = conversations_[number];
    const std::size_t size = conversation.ids.size();
    for (std::size_t i = 0; i < size && place < tokens.size(); ++i, ++place) {
      tokens[place] = conversation.ids[i];
      targets[place] =
          i + 1 < size && conversation.counts[i + 1] ? conversation.ids[i + 1] : ops::kNoTarget;
    }
    if (packed_ && place < tokens.size()) targets[place - 1] = ops::kDocumentEnds;
  }
  std::ranges::fill(tokens.subspan(place), 0);
  std::ranges::fill(targets.subspan(place), ops::kNoTarget);
  return {};
}

}  // namespace sortie::trainer
