#include "trainer/samples/conversation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "trainer/samples/json_member.h"
#include "trainer/tokenizer/chat_format.h"

namespace sortie::trainer {
namespace {

struct Part {
  std::string text;
  bool counts = false;
};

/// Parts of a message in ChatML. Other conversations have fewer parts in total.
constexpr std::size_t kMessageParts = 3;

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

/// Keys in files of other programs that change what is trained, with advice for each.
constexpr std::pair<std::string_view, std::string_view> kUnsupported[] = {
    {"tool_calls", "write the call into \"content\", or remove the conversation"},
    {"function_call", "write the call into \"content\", or remove the conversation"},
    {"tools", "write the descriptions of the tools into the \"content\" of a system message"},
    {"functions", "write the descriptions of the tools into the \"content\" of a system message"},
    {"weight", "all answers count the same; remove the key, or the conversation"},
    {"train",
     "all answers and nothing else are trained on; remove the key, or write the line as "
     "\"prompt\" and \"completion\""}};

/// Files that were written from tables have null or empty values in columns that a line does not
/// use.
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

Result<std::vector<Part>> parse_conversation(std::string_view line) {
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

std::string text_of(std::span<const Part> parts) {
  std::string text;
  for (const Part& part : parts) text += part.text;
  return text;
}

/// Appends the tokens of the parts, encoded as one text, to `conversation`. A token across the
/// border of two parts belongs to the later one. Tokenizes once per part, so the time is that of
/// tokenizing the text times the number of parts.
Result<> append_parts(std::span<const Part> parts, const Tokenizer& tokenizer,
                      Conversation& conversation) {
  std::vector<std::int32_t> all;
  SORTIE_TRY(tokenizer.encode(text_of(parts), all));
  std::vector<bool> counts;
  for (std::size_t part = 0; part + 1 < parts.size(); ++part) {
    std::vector<std::int32_t> ids;
    SORTIE_TRY(tokenizer.encode(text_of(parts.first(part + 1)), ids));
    const auto end = static_cast<std::size_t>(std::ranges::mismatch(ids, all).in1 - ids.begin());
    if (end > counts.size()) counts.resize(end, parts[part].counts);
  }
  counts.resize(all.size(), parts.back().counts);
  conversation.ids.insert(conversation.ids.end(), all.begin(), all.end());
  conversation.counts.insert(conversation.counts.end(), counts.begin(), counts.end());
  return {};
}

/// The tokens are those of the whole text. Nearly always, tokenizing one message after the other
/// gives the same tokens. The borders of the parts are then found in time linear in the text.
Result<Conversation> tokenize(std::span<const Part> parts, const Tokenizer& tokenizer) {
  Conversation by_message;
  for (std::span<const Part> rest = parts; !rest.empty();) {
    const std::size_t count = std::min(rest.size(), kMessageParts);
    SORTIE_TRY(append_parts(rest.first(count), tokenizer, by_message));
    rest = rest.subspan(count);
  }
  if (parts.size() <= kMessageParts) return by_message;
  std::vector<std::int32_t> whole;
  SORTIE_TRY(tokenizer.encode(text_of(parts), whole));
  if (by_message.ids == whole) return by_message;
  Conversation conversation;
  SORTIE_TRY(append_parts(parts, tokenizer, conversation));
  return conversation;
}

}  // namespace

Result<Conversation> read_conversation(std::string_view line, const Tokenizer& tokenizer,
                                       std::int64_t vocab_size) {
  auto parsed = parse_conversation(line);
  if (!parsed && parsed.error().code == ErrorCode::unsupported)
    return fail(ErrorCode::data, parsed.error().message);
  if (!parsed)
    return fail(ErrorCode::data,
                fmt::format("{}; write {{\"messages\": [{{\"role\": \"user\", \"content\": "
                            "\"...\"}}, ...]}} or {{\"prompt\": \"...\", \"completion\": \"...\"}}",
                            parsed.error().message));
  const std::vector<Part>& parts = *parsed;
  SORTIE_ASSIGN_OR_RETURN(Conversation conversation, tokenize(parts, tokenizer));
  for (const std::int32_t id : conversation.ids)
    if (id >= vocab_size)
      return fail(ErrorCode::data,
                  fmt::format("token {} is outside of model.vocab_size = {}", id, vocab_size));
  conversation.chatml = parts.size() >= kMessageParts;
  if (conversation.chatml) return conversation;
  const auto eod = tokenizer.eod_id();
  conversation.without_end = !eod || *eod >= vocab_size;
  if (!conversation.without_end) {
    conversation.ids.push_back(*eod);
    conversation.counts.push_back(true);
  }
  return conversation;
}

}  // namespace sortie::trainer
