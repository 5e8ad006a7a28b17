#include "trainer/tokenizer/chat_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sortie::trainer {
namespace {

/// Returns the token that is spelled `mark`, if encoding `mark` yields it.
std::optional<std::int32_t> whole_token(const Tokenizer& tokenizer, std::string_view mark) {
  std::vector<std::int32_t> ids;
  if (!tokenizer.encode(mark, ids)) return std::nullopt;
  // Some tokenizers put a token before every text.
  const auto found =
      std::ranges::find_if(ids, [&](std::int32_t id) { return tokenizer.token_text(id) == mark; });
  return found == ids.end() ? std::nullopt : std::optional(*found);
}

/// Returns the template, or the default one of a list of named templates.
std::optional<std::string> template_in(const std::optional<std::string>& file) {
  if (!file) return std::nullopt;
  const auto json = nlohmann::json::parse(*file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("chat_template")) return std::nullopt;
  const nlohmann::json& value = json["chat_template"];
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return std::nullopt;
  for (const nlohmann::json& one : value) {
    const auto text_of = [&one](const char* key) {
      const auto found = one.is_object() ? one.find(key) : one.end();
      return found != one.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    if (text_of("name") == "default") return text_of("template");
  }
  return std::nullopt;
}

}  // namespace

ChatMarks chat_marks(const Tokenizer& tokenizer) {
  return {whole_token(tokenizer, kChatBegin), whole_token(tokenizer, kChatEnd)};
}

std::string_view chatml_template() {
  return "{% for message in messages %}"
         "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' "
         "}}"
         "{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
}

bool is_chatml(std::string_view chat_template) {
  return chat_template.contains(kChatBegin) && chat_template.contains(kChatEnd) &&
         !chat_template.contains("<|im_sep|>");  // Phi's template, which ends a role differently
}

std::optional<std::string> find_chat_template(
    const std::function<std::optional<std::string>(std::string_view name)>& read) {
  if (auto jinja = read("chat_template.jinja")) return jinja;
  for (const std::string_view file : {"chat_template.json", "tokenizer_config.json"})
    if (auto text = template_in(read(file))) return text;
  return std::nullopt;
}

}  // namespace sortie::trainer
