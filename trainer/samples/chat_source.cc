#include "trainer/samples/chat_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "trainer/samples/json_member.h"
#include "trainer/storage/sha256.h"
#include "trainer/tokenizer/chat_format.h"

namespace sortie::trainer {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

/// Keys of other programs' files that change what is trained, and what to do about each.
constexpr std::pair<std::string_view, std::string_view> kUnsupported[] = {
    {"tool_calls", "write the call into \"content\", or remove the conversation"},
    {"function_call", "write the call into \"content\", or remove the conversation"},
    {"tools", "write the descriptions of the tools into the \"content\" of a system message"},
    {"functions", "write the descriptions of the tools into the \"content\" of a system message"},
    {"weight", "all answers count the same; remove the key, or the conversation"},
    {"train",
     "all answers and nothing else are trained on; remove the key, or write the line as "
     "\"prompt\" and \"completion\""}};

/// Files that were written from tables have null or nothing in the columns of other lines.
Result<> check_keys(const nlohmann::json& object, std::string_view where) {
  for (const auto& [key, advice] : kUnsupported) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null() || (found->is_structured() && found->empty()))
      continue;
    return fail(ErrorCode::unsupported,
                fmt::format("{}\"{}\" is not supported: {}", where, key, advice));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ChatSource>> ChatSource::open(const config::JobConfig& job,
                                                     const std::vector<std::string>& files,
                                                     const Tokenizer& tokenizer, bool shuffle) {
  constexpr std::size_t kMaxFileBytes = std::size_t{4} << 30;
  std::unique_ptr<ChatSource> source(new ChatSource);
  source->sequence_length_ = job.model.sequence_length;
  source->vocab_size_ = job.model.vocab_size;
  source->seed_ = static_cast<std::uint64_t>(job.trainer.seed);
  source->shuffle_ = shuffle;
  Sha256 hash;
  hash.update(fmt::format("{} {}\n", tokenizer.name(), tokenizer.model_hash()));
  for (const std::string& file : files) {
    SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxFileBytes));
    hash.update(text);
    std::int64_t number = 0;
    const std::int64_t before = source->count_.conversations;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      SORTIE_TRY(source->add_line(line, fmt::format("{}:{}", file, number), tokenizer));
    }
    if (source->count_.conversations == before)
      return fail(
          ErrorCode::data,
          fmt::format("{}: no conversation in it; write one a line, or take the file out of "
                      "the list",
                      file));
  }
  source->fingerprint_ = hash.finish_hex();
  if (source->conversations_.empty())
    return fail(
        ErrorCode::data,
        fmt::format("{}: no conversation has an answer in its first {} tokens; use a "
                    "longer model.sequence_length",
                    files.empty() ? "data.chat_files" : files.front(), source->sequence_length_));
  return source;
}

Result<std::vector<ChatSource::Part>> ChatSource::parse_conversation(std::string_view line) {
  std::vector<Part> parts;
  SORTIE_ASSIGN_OR_RETURN(const nlohmann::json value, parse_json_object(line));
  SORTIE_TRY(check_keys(value, ""));
  if (!value.contains("messages")) {
    for (const auto& [key, counts] : {std::pair("prompt", false), {"completion", true}}) {
      SORTIE_ASSIGN_OR_RETURN(const auto* text, json_member(value, key, JsonKind::text));
      parts.push_back({text->get<std::string>(), counts});
    }
    return parts;
  }
  SORTIE_ASSIGN_OR_RETURN(const auto* messages, json_member(value, "messages", JsonKind::list));
  if (messages->empty()) return fail(ErrorCode::data, "\"messages\" is empty");
  for (const nlohmann::json& message : *messages) {
    SORTIE_TRY(check_json_kind(message, "a message", JsonKind::object));
    SORTIE_TRY(check_keys(message, fmt::format("message {}: ", &message - &messages->front() + 1)));
    SORTIE_ASSIGN_OR_RETURN(const auto* role, json_member(message, "role", JsonKind::text));
    SORTIE_ASSIGN_OR_RETURN(const auto* content, json_member(message, "content", JsonKind::text));
    const std::string_view name = role->get_ref<const std::string&>();
    if (std::ranges::find(kRoles, name) == std::end(kRoles))
      return fail(ErrorCode::data, fmt::format("role {} is unknown; use one of {}", role->dump(),
                                               fmt::join(kRoles, ", ")));
    parts.push_back({fmt::format("{}{}\n", kChatBegin, name), false});
    parts.push_back({content->get<std::string>().append(kChatEnd), name == "assistant"});
    parts.push_back({"\n", false});
  }
  return parts;
}

Result<> ChatSource::add_line(const std::string& line, const std::string& where,
                              const Tokenizer& tokenizer) {
  auto parsed = parse_conversation(line);
  if (!parsed && parsed.error().code == ErrorCode::unsupported)
    return fail(ErrorCode::data, fmt::format("{}: {}", where, parsed.error().message));
  if (!parsed)
    return fail(ErrorCode::data,
                fmt::format("{}: {}; write {{\"messages\": [{{\"role\": \"user\", \"content\": "
                            "\"...\"}}, ...]}} or {{\"prompt\": \"...\", \"completion\": \"...\"}}",
                            where, parsed.error().message));
  const std::vector<Part>& parts = *parsed;
  const bool of_two_texts = parts.size() == 2;
  chatml_ = chatml_ || !of_two_texts;
  auto conversation = tokenize(parts, tokenizer);
  if (!conversation) return std::unexpected(with_context(std::move(conversation).error(), where));
  if (const auto eod = tokenizer.eod_id(); of_two_texts && eod && *eod < vocab_size_) {
    conversation->ids.push_back(*eod);
    conversation->counts.push_back(true);
  }
  // The first token is no target.
  const auto targets_before = [&](std::size_t end) {
    const auto begin = conversation->counts.begin();
    return end > 1 ? std::count(begin + 1, begin + static_cast<std::ptrdiff_t>(end), true) : 0;
  };
  const std::size_t size = conversation->ids.size(),
                    kept = std::min(size, static_cast<std::size_t>(sequence_length_) + 1);
  const std::int64_t targets = targets_before(kept), all_targets = targets_before(size);
  ++count_.conversations;
  count_.answer_tokens += all_targets;
  count_.lost_tokens += all_targets - targets;
  if (targets == 0) {
    ++count_.left_out;
    return {};
  }
  count_.cut += kept < size;
  conversation->ids.resize(kept);
  conversation->counts.resize(kept);
  conversations_.push_back(std::move(*conversation));
  return {};
}

/// The text is tokenized as a whole; a token that lies across the border of two parts belongs to
/// the later one.
Result<ChatSource::Conversation> ChatSource::tokenize(const std::vector<Part>& parts,
                                                      const Tokenizer& tokenizer) const {
  std::string text;
  for (const Part& part : parts) text += part.text;
  Conversation conversation;
  SORTIE_TRY(tokenizer.encode(text, conversation.ids));
  for (const std::int32_t id : conversation.ids)
    if (id >= vocab_size_)
      return fail(ErrorCode::data,
                  fmt::format("token {} is outside of model.vocab_size = {}", id, vocab_size_));
  std::string before;
  for (const Part& part : parts) {
    std::vector<std::int32_t> ids;
    before += part.text;
    SORTIE_TRY(tokenizer.encode(before, ids));
    std::size_t end = 0;
    while (end < ids.size() && end < conversation.ids.size() && ids[end] == conversation.ids[end])
      ++end;
    if (end > conversation.counts.size()) conversation.counts.resize(end, part.counts);
  }
  conversation.counts.resize(conversation.ids.size(), parts.back().counts);
  return conversation;
}

double ChatSource::padding() const {
  std::int64_t filled = 0;
  for (const Conversation& conversation : conversations_)
    filled += std::min(static_cast<std::int64_t>(conversation.ids.size()), sequence_length_);
  return 1.0 -
         static_cast<double>(filled) / static_cast<double>(samples_per_epoch() * sequence_length_);
}

Result<> ChatSource::sample(std::int64_t index, std::span<std::int32_t> tokens,
                            std::span<std::int32_t> targets) {
  const std::int64_t count = samples_per_epoch();
  std::int64_t at = index % count;
  if (shuffle_) {
    if (const std::int64_t epoch = index / count; epoch != epoch_) {
      epoch_ = epoch;
      order_ = Permutation(mix64(seed_ + mix64(static_cast<std::uint64_t>(epoch))),
                           static_cast<std::uint64_t>(count));
    }
    at = static_cast<std::int64_t>(order_(static_cast<std::uint64_t>(at)));
  }
  const Conversation& conversation = conversations_[static_cast<std::size_t>(at)];
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool inside = i < conversation.ids.size(), next = i + 1 < conversation.ids.size();
    tokens[i] = inside ? conversation.ids[i] : 0;
    targets[i] = next && conversation.counts[i + 1] ? conversation.ids[i + 1] : -100;
  }
  return {};
}

}  // namespace sortie::trainer
