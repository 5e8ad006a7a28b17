// ChatML: the text format of conversations, and which tokenizers and templates support it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

/// The marks of a message: "<|im_start|>ROLE\nCONTENT<|im_end|>\n".
inline constexpr std::string_view kChatBegin = "<|im_start|>", kChatEnd = "<|im_end|>";

/// The ids of the marks. nullopt: the tokenizer splits that mark into several tokens.
struct ChatMarks {
  std::optional<std::int32_t> begin{}, end{};
  bool whole() const { return begin && end; }
};
ChatMarks chat_marks(const Tokenizer& tokenizer);

/// ChatML as a chat template of transformers (Jinja). It formats conversations as training does;
/// with add_generation_prompt it adds the beginning of an answer. It adds nothing before the first
/// message.
std::string_view chatml_template();
/// Whether a chat template formats messages in ChatML, judging by the marks that it contains.
bool is_chatml(std::string_view chat_template);

/// Returns the chat template of a Hugging Face folder. Looks in the order of transformers:
/// chat_template.jinja, chat_template.json, tokenizer_config.json. `read` returns the content of a
/// file of the folder, or nullopt if it does not exist. Returns nullopt if the folder has no
/// template or if it is not a string.
std::optional<std::string> find_chat_template(
    const std::function<std::optional<std::string>(std::string_view name)>& read);

}  // namespace sortie::trainer
